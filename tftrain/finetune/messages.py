"""The messages of a chat as data sets of the hub have them, in the form that chat templates read: role and content."""

from collections.abc import Mapping, Sequence
from typing import Any

from tftrain.data.table_rows import Row
from tftrain.files.errors import DataError
from tftrain.files.strict_json import shown

COLUMNS = ("messages", "conversations", "conversation")
# ShareGPT has from and value in place of role and content, with these names.
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
_ROLES |= {"function_call": "assistant", "observation": "tool", "function_response": "tool"}
_ROLES |= {role: role for role in ("system", "user", "assistant", "tool")}


def read(row: Row, columns: Sequence[str], keeps_parts: bool = False) -> list[Mapping[str, Any]]:
    """Returns the messages in a column of a row, or those of a prompt and of its completion, which may be texts.

    A message of the prompt has the weight 0. Parts of a text become one text, unless the template reads them
    (`keeps_parts`). Raises a DataError if a column has no messages; the error names what is wrong.
    """
    found: list[Mapping[str, Any]] = []
    if len(columns) == 1 and isinstance(system := row.values.get("system"), str) and system.strip():
        found.append({"role": "system", "content": system})
    for number, column in enumerate(columns, 1):
        value, is_prompt = row.values.get(column), number < len(columns)
        if len(columns) > 1 and isinstance(value, str):
            value = [{"role": "user" if is_prompt else "assistant", "content": value}]
        fault = f"{row.place}: {column} is not a list of objects with the strings role and content"
        if not isinstance(value, list) or not value:
            raise DataError(f"{fault}: {shown(value)}")
        read = [_message(each, f"{fault}: message {index}", keeps_parts) for index, each in enumerate(value, 1)]
        found += [{**message, "weight": 0} for message in read] if is_prompt else read
    return found


def _message(value: Any, where: str, keeps_parts: bool) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where} is {shown(value)}")
    role = value.get("role") if "role" in value else _ROLES.get(str(value.get("from")).lower())
    if not isinstance(role, str):
        given = shown(value.get("role", value.get("from")))
        raise DataError(f"{where} has the role {given}; expected one of {', '.join(_ROLES)}")
    content = value.get("content", value.get("value"))
    rest = {name: field for name, field in value.items() if name not in ("from", "value")}
    if isinstance(content, list) and content:
        for index, part in enumerate(content):
            text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else part
            if not isinstance(text, str):
                raise DataError(f"{where}, content[{index}] is {shown(part)}; expected a text")
        if not keeps_parts:
            content = "".join(part if isinstance(part, str) else part["text"] for part in content)
    elif content is None and any(field for name, field in rest.items() if name not in ("role", "name", "weight")):
        content = ""  # The message is a call of a tool, which the template writes.
    if not isinstance(content, str | list) or content == []:
        raise DataError(f"{where} has the content {shown(content)}; expected a text")
    return {**rest, "role": role, "content": content}
