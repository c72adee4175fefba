"""What `build_horovod.py` changes in Horovod's source archive; docs/security.md says which fault each change mends.

Each entry has a file, a passage that occurs in it once, and what takes its place.
"""

from pathlib import Path

# The environment variable with the secret of a job: who does not know it gets nothing from a launcher's server, and no
# connection to a rank.
TOKEN = "HOROVOD_JOB_TOKEN"

CHANGES = [
    # It does not compile with TensorFlow 2.14 and later. CMake writes the folders it linked from into the library's run
    # path; one of them, under /tmp, may later be anyone's.
    (
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "set(CMAKE_SKIP_BUILD_RPATH TRUE)\n",
    ),
    # The token of a job: `horovodrun` makes one, its servers ask for it, its clients send it.
    (
        "horovod/runner/common/util/secret.py",
        "HOROVOD_SECRET_KEY = '_HOROVOD_SECRET_KEY'\n",
        f"""HOROVOD_SECRET_KEY = '_HOROVOD_SECRET_KEY'
JOB_TOKEN = '{TOKEN}'


def token_header():
    token = os.environ.get(JOB_TOKEN)
    return {{'Authorization': 'Bearer ' + token}} if token else {{}}
""",
    ),
    (
        "horovod/runner/launch.py",
        "def _run(args):\n",
        "def _run(args):\n    os.environ[secret.JOB_TOKEN] = secret.make_secret_key().hex()\n",
    ),
    (
        "horovod/runner/http/http_server.py",
        "import collections\nimport logging\n",
        "import collections\nimport hmac\nimport logging\n",
    ),
    (
        "horovod/runner/http/http_server.py",
        "from horovod.runner.util.network import find_port\n",
        "from horovod.runner.common.util.secret import token_header\nfrom horovod.runner.util.network import find_port\n",
    ),
    (
        "horovod/runner/http/http_server.py",
        "    timeout = SINGLE_REQUEST_TIMEOUT\n",
        """    timeout = SINGLE_REQUEST_TIMEOUT

    # Every method asks for the token, and no body is larger than what ranks send.
    def parse_request(self):
        if not super().parse_request():
            return False
        expected = self.server.authorization
        given = self.headers.get('Authorization', '') if expected else ''
        length = self.headers.get('Content-Length', '0')
        if self.command not in ('GET', 'PUT', 'DELETE') or not length.isdecimal():
            status = 400
        elif not hmac.compare_digest(given.encode('latin-1'), expected.encode('latin-1')):
            status = 403
        elif int(length) > self.server.largest_body:
            status = 413
        else:
            return True
        self.close_connection = True
        self.send_status_code(status)
        return False
""",
    ),
    (
        "horovod/runner/http/http_server.py",
        "class RendezvousHTTPServer(socketserver.ThreadingMixIn, HTTPServer, object):\n",
        "class RendezvousHTTPServer(socketserver.ThreadingMixIn, HTTPServer, object):\n    largest_body = 1 << 20\n\n",
    ),
    (
        "horovod/runner/http/http_server.py",
        "class KVStoreHTTPServer(HTTPServer, object):\n",
        "class KVStoreHTTPServer(HTTPServer, object):\n    largest_body = 1 << 32\n\n",
    ),
    *(
        (
            "horovod/runner/http/http_server.py",
            f"        super({server}, self).__init__(addr, handler)\n",
            f"        super({server}, self).__init__(addr, handler)\n"
            "        self.authorization = token_header().get('Authorization', '')\n",
        )
        for server in ("RendezvousHTTPServer", "KVStoreHTTPServer")
    ),
    (
        "horovod/runner/http/http_server.py",
        "    def start(self, handler_cls=RendezvousHandler):\n",
        "    def start(self, handler_cls=RendezvousHandler, host=''):\n",
    ),
    (
        "horovod/runner/http/http_server.py",
        "                addr, handler_cls, self._verbose))\n",
        "                addr, handler_cls, self._verbose), host)\n",
    ),
    (
        "horovod/runner/util/network.py",
        "def find_port(server_factory):\n",
        "def find_port(server_factory, host=''):\n",
    ),
    ("horovod/runner/util/network.py", "            addr = ('', port)\n", "            addr = (host, port)\n"),
    (
        "horovod/runner/http/http_client.py",
        "from horovod.runner.common.util import codec\n",
        "from horovod.runner.common.util import codec\nfrom horovod.runner.common.util.secret import token_header\n",
    ),
    (
        "horovod/runner/http/http_client.py",
        "        req = Request(url)\n",
        "        req = Request(url, headers=token_header())\n",
    ),
    (
        "horovod/runner/http/http_client.py",
        "        req = Request(url, data=codec.dumps_base64(value, to_ascii=False))\n",
        """        data = value if isinstance(value, bytes) else codec.dumps_base64(value, to_ascii=False)
        req = Request(url, data=data, headers=token_header())
""",
    ),
    (
        "horovod/common/gloo/http_store.cc",
        "  for (int retry_cnt = 0; retry_cnt < MAX_RETRY_TIMES; ++retry_cnt) {\n",
        f"""  std::vector<std::string> headers;
  const char* token = std::getenv("{TOKEN}");
  if (token != nullptr && *token != 0) {{
    headers.push_back(std::string("Authorization: Bearer ") + token);
  }}
  for (int retry_cnt = 0; retry_cnt < MAX_RETRY_TIMES; ++retry_cnt) {{
""",
    ),
    (
        "horovod/common/gloo/http_store.cc",
        "request.send(method, body);\n",
        "request.send(method, body, headers);\n",
    ),
    ("horovod/common/gloo/http_store.cc", "#include <cstring>\n", "#include <cstdlib>\n#include <cstring>\n"),
    # What a process of an elastic job registers is JSON, and no other process can ask for it (CVE-2024-10190).
    (
        "horovod/runner/elastic/worker.py",
        "            value = (self._service.addresses(), secret_key)\n",
        "            value = json.dumps([self._service.addresses(), secret_key.hex()]).encode()\n",
    ),
    ("horovod/runner/elastic/worker.py", "import os\nimport threading\n", "import json\nimport os\nimport threading\n"),
    (
        "horovod/runner/elastic/rendezvous.py",
        "from horovod.runner.common.util import codec\n",
        "",
    ),
    ("horovod/runner/elastic/rendezvous.py", "import logging\n", "import json\nimport logging\n"),
    (
        "horovod/runner/elastic/rendezvous.py",
        """                addresses, secret_key = codec.loads_base64(value)
            }
"""[:-14],
        """                by_interface, secret_key = json.loads(value)
                addresses = {str(interface): [(str(address), int(port)) for address, port in each]
                             for interface, each in by_interface.items()}
""",
    ),
    (
        "horovod/runner/elastic/rendezvous.py",
        """                self._put_worker_addresses(host, int(local_rank), addresses, secret_key)

            super(RendezvousHandler, self)._put_value(scope, key, value)
""",
        """                self._put_worker_addresses(host, int(local_rank), addresses, bytes.fromhex(secret_key))
                return

            super(RendezvousHandler, self)._put_value(scope, key, value)
""",
    ),
    # Services listen at the interface that they serve, and read no message that is too large.
    (
        "horovod/runner/common/util/network.py",
        """                addr, self._make_handler()))
""",
        """                addr, self._make_handler()), self._address())
""",
    ),
    (
        "horovod/runner/common/util/network.py",
        "    def _make_handler(self):\n",
        """    def _address(self):
        \"\"\"Returns the address of the interface, if there is one.\"\"\"
        names = [self._nics] if isinstance(self._nics, str) else list(self._nics or [])
        found = psutil.net_if_addrs().get(names[0], []) if len(names) == 1 else []
        return next((each.address for each in found if each.family == socket.AF_INET), '')

    def _make_handler(self):
""",
    ),
    (
        "horovod/runner/common/util/network.py",
        "        message = rfile.read(message_len)\n",
        """        if not 0 <= message_len <= 1 << 28:
            raise Exception('Security error: a message of {} bytes.'.format(message_len))
        message = rfile.read(message_len)
""",
    ),
    # `horovodrun` listens at the address that ranks connect to.
    (
        "horovod/runner/gloo_run.py",
        "    global_rendezv_port = rendezvous.start()\n",
        "    global_rendezv_port = rendezvous.start(host=server_ip)\n",
    ),
    (
        "horovod/runner/gloo_run.py",
        """    global_rendezv_port = rendezvous.start(handler)
    driver.wait_for_available_slots(settings.num_proc)

    nics = get_common_interfaces(driver)
    server_ip = network.get_driver_ip(nics)
""",
        """    driver.wait_for_available_slots(settings.num_proc)

    nics = get_common_interfaces(driver)
    server_ip = network.get_driver_ip(nics)
    global_rendezv_port = rendezvous.start(handler, server_ip)
""",
    ),
    # Environments and keys travel over standard input: command lines are public on a host.
    (
        "horovod/runner/gloo_run.py",
        "def _exec_command_fn(settings):\n",
        "def _exec_command_fn(settings, variables):\n",
    ),
    (
        "horovod/runner/gloo_run.py",
        """        if host_address not in local_addresses:
            local_command = quote('cd {pwd} > /dev/null 2>&1 ; {command}'
                                  .format(pwd=os.getcwd(), command=command))
            command = get_remote_command(local_command,
                                         host=host_name,
                                         port=settings.ssh_port,
                                         identity_file=settings.ssh_identity_file)
""",
        """        own = dict(os.environ)
        sent = {key: value for key, value in variables.items() if env_util.is_exportable(key)}
        if host_address in local_addresses:
            own.update(sent)
        elif env_util.is_kubeflow_mpi():  # It passes no input on.
            words = ' '.join('%s=%s' % (key, quote(value)) for key, value in sent.items())
            local_command = quote('cd {pwd} > /dev/null 2>&1 ; env {words} {command}'
                                  .format(pwd=quote(os.getcwd()), words=words, command=command))
            command = get_remote_command(local_command, host=host_name)
        else:
            script = 'eval "$(cat)"; cd {pwd} > /dev/null 2>&1 ; {command}'.format(pwd=quote(os.getcwd()), command=command)
            own[env_util.OVER_STDIN] = '\\n'.join('export %s=%s' % (key, quote(value)) for key, value in sent.items())
            command = 'printenv {} | {}'.format(env_util.OVER_STDIN, get_remote_command(
                quote('exec sh -c ' + quote(script)),
                host=host_name,
                port=settings.ssh_port,
                identity_file=settings.ssh_identity_file))
""",
    ),
    (
        "horovod/runner/gloo_run.py",
        """            exit_code = safe_shell_exec.execute(command,
                                                index=index,
""",
        """            exit_code = safe_shell_exec.execute(command,
                                                env=own,
                                                index=index,
""",
    ),
    (
        "horovod/runner/gloo_run.py",
        """    exec_command = _exec_command_fn(settings)
    launch_gloo(command, exec_command, settings, nics, env, server_ip)
""",
        """    exec_command = _exec_command_fn(settings, env)
    launch_gloo(command, exec_command, settings, nics, {}, server_ip)
""",
    ),
    (
        "horovod/runner/gloo_run.py",
        """    exec_command = _exec_command_fn(settings)
    rendezvous = RendezvousServer(settings.verbose)
    return launch_gloo_elastic(command_or_func, exec_command, settings, env, get_common_interfaces, rendezvous, executable)
""",
        """    exec_command = _exec_command_fn(settings, env)
    rendezvous = RendezvousServer(settings.verbose)
    return launch_gloo_elastic(command_or_func, exec_command, settings, {}, get_common_interfaces, rendezvous, executable)
""",
    ),
    (
        "horovod/runner/common/util/env.py",
        "IGNORE_REGEXES = {'BASH_FUNC_.*', 'OLDPWD', '.*CUDA_VISIBLE_DEVICES', secret.HOROVOD_SECRET_KEY}\n",
        """OVER_STDIN = '_HOROVOD_OVER_STDIN'
IGNORE_REGEXES = {'BASH_FUNC_.*', 'OLDPWD', '.*CUDA_VISIBLE_DEVICES', secret.HOROVOD_SECRET_KEY, OVER_STDIN}
""",
    ),
    (
        "horovod/runner/driver/driver_service.py",
        """            '{python} -m horovod.runner.task_fn {index} {num_hosts} ' \\
            '{driver_addresses} {settings}' \\
            .format(python=sys.executable,
                    index=codec.dumps_base64(index),
                    num_hosts=codec.dumps_base64(num_hosts),
                    driver_addresses=codec.dumps_base64(driver_addresses),
                    settings=codec.dumps_base64(settings))
""",
        """            '{python} -m horovod.runner.task_fn'.format(python=sys.executable)
        given = codec.dumps_base64((index, num_hosts, driver_addresses, settings))
        environment = dict(os.environ, **{env_util.OVER_STDIN: given})
""",
    ),
    (
        "horovod/runner/driver/driver_service.py",
        "        args_list.append([command])\n",
        "        args_list.append(['printenv {} | {}'.format(env_util.OVER_STDIN, command), environment])\n",
    ),
    (
        "horovod/runner/driver/driver_service.py",
        """    def _exec_command(command):
        host_output = io.StringIO()
        try:
            exit_code = safe_shell_exec.execute(command,
""",
        """    def _exec_command(command, environment):
        host_output = io.StringIO()
        try:
            exit_code = safe_shell_exec.execute(command,
                                                env=environment,
""",
    ),
    (
        "horovod/runner/driver/driver_service.py",
        "from horovod.runner.common.util import codec, safe_shell_exec\n",
        "from horovod.runner.common.util import codec, env as env_util, safe_shell_exec\n",
    ),
    (
        "horovod/runner/task_fn.py",
        """    if len(sys.argv) != 5:
        print('Usage: {} <index> <num_hosts> <driver_addresses> <settings>'.format(sys.argv[0]))
        sys.exit(1)

    index = codec.loads_base64(sys.argv[1])
    num_hosts = codec.loads_base64(sys.argv[2])
    driver_addresses = codec.loads_base64(sys.argv[3])
    settings = codec.loads_base64(sys.argv[4])

    _task_fn(index, num_hosts, driver_addresses, settings)
""",
        "    _task_fn(*codec.loads_base64(sys.stdin.read()))\n",
    ),
    # ssh checks the key of a host as its configuration says.
    (
        "horovod/runner/util/remote.py",
        "'ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no'\n",
        "'ssh -o BatchMode=yes -o PasswordAuthentication=no'\n",
    ),
    # Whoever connects to a rank sends the token first. A rank that gets another one closes that connection, and waits on.
    (
        "third_party/gloo/gloo/transport/tcp/pair.cc",
        "} // namespace\n\nPair::Pair(\n",
        f"""std::string jobToken() {{
  const char* token = std::getenv("{TOKEN}");
  return token == nullptr ? "" : token;
}}

bool sendJobToken(int fd) {{
  const auto token = jobToken();
  return token.empty() ||
      ::send(fd, token.data(), token.size(), MSG_NOSIGNAL) ==
      static_cast<ssize_t>(token.size());
}}

// Whether the token arrives within a second.
bool receiveJobToken(int fd) {{
  const auto token = jobToken();
  std::string given(token.size(), 0);
  size_t count = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (count < given.size()) {{
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    struct pollfd waiting = {{fd, POLLIN, 0}};
    if (left.count() <= 0 ||
        (::poll(&waiting, 1, left.count()) == -1 && errno != EINTR)) {{
      return false;
    }}
    const auto rv =
        ::recv(fd, &given[count], given.size() - count, MSG_DONTWAIT);
    if (rv == 0 || (rv == -1 && errno != EAGAIN && errno != EINTR)) {{
      return false;
    }}
    count += rv > 0 ? rv : 0;
  }}
  unsigned char difference = 0;
  for (size_t i = 0; i < token.size(); i++) {{
    difference |= token[i] ^ given[i];
  }}
  return difference == 0;
}}

}} // namespace

Pair::Pair(
""",
    ),
    (
        "third_party/gloo/gloo/transport/tcp/pair.cc",
        """  rv = accept(fd_, (struct sockaddr*)&addr, &addrlen);
""",
        """  rv = accept(fd_, (struct sockaddr*)&addr, &addrlen);
  if (rv != -1 && !receiveJobToken(rv)) {
    ::close(rv);
    return;
  }
""",
    ),
    (
        "third_party/gloo/gloo/transport/tcp/pair.cc",
        """        GLOO_ERROR_MSG("connect ", peer_.str(), ": ", strerror(optval)));
    return;
  }
""",
        """        GLOO_ERROR_MSG("connect ", peer_.str(), ": ", strerror(optval)));
    return;
  }
  if (!sendJobToken(fd_)) {
    signalException(GLOO_ERROR_MSG("send ", peer_.str(), ": ", strerror(errno)));
    return;
  }
""",
    ),
    (
        "third_party/gloo/gloo/transport/tcp/pair.cc",
        "#include <netinet/tcp.h>\n#include <signal.h>\n",
        "#include <netinet/tcp.h>\n#include <poll.h>\n#include <signal.h>\n",
    ),
]


def apply(source: Path) -> None:
    """Changes the files of an unpacked archive; raises ValueError if a passage is not there exactly once."""
    for name, old, new in CHANGES:
        text = (source / name).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{name} has {text.count(old)} passages as expected once: {old.splitlines()[0].strip()!r}")
        (source / name).write_text(text.replace(old, new))
