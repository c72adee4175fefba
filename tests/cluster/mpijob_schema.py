"""What may stand in an MPIJob of `kubeflow.org/v2beta1`, as a JSON schema.

The fields, their types and their values are those of pkg/apis/kubeflow/v2beta1/types.go in kubeflow/mpi-operator, July
2026; that the operator needs a Launcher and names that are DNS labels follows from pkg/apis/kubeflow/validation. The
templates of pods are Kubernetes' own and have schemas of their own.
"""

COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string"}
REPLICAS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["template"],
    "properties": {
        "replicas": COUNT,
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
        "template": {"type": "object", "required": ["spec"]},
    },
}
LAUNCHER = {**REPLICAS, "properties": {**REPLICAS["properties"], "replicas": {"const": 1}}}
SCHEDULING = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "minAvailable": COUNT,
        "queue": TEXT,
        "minResources": {"type": "object"},
        "priorityClass": TEXT,
        "scheduleTimeoutSeconds": COUNT,
    },
}
RUN_POLICY = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
        "ttlSecondsAfterFinished": COUNT,
        "activeDeadlineSeconds": COUNT,
        "backoffLimit": COUNT,
        "schedulingPolicy": SCHEDULING,
        "suspend": {"type": "boolean"},
        "managedBy": {"enum": ["", "kubeflow.org/mpi-operator", "kueue.x-k8s.io/multikueue"]},
    },
}
SPEC = {
    "type": "object",
    "additionalProperties": False,
    "required": ["mpiReplicaSpecs"],
    "properties": {
        "slotsPerWorker": COUNT,
        "runLauncherAsWorker": {"type": "boolean"},
        "runPolicy": RUN_POLICY,
        "mpiReplicaSpecs": {
            "type": "object",
            "additionalProperties": False,
            "required": ["Launcher"],
            "properties": {"Launcher": LAUNCHER, "Worker": REPLICAS},
        },
        "sshAuthMountPath": TEXT,
        "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
        "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
    },
}
MPI_JOB = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v2beta1"},
        "kind": {"const": "MPIJob"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,40}[a-z0-9])?$"}},
        },
        "spec": SPEC,
    },
}
