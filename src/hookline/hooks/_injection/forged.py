"""The signs of an attack that belong to no language: forged turns and calls, and addresses that carry data out."""

from __future__ import annotations

from .rule import Rule

_HARM = (
    r"(?:execute|run|call|invoke|trigger|send|forward|e ?mail|upload|delete|remove|erase|wipe|transfer|wire|disable|turn off|"
    r"grant|approve|accept|reset|export|visit|click|download|install|perform|share|collect|gather|obey|comply|override|bypass|"
    r"reveal|output|leak|dump|drop|format|shut down)"
)
_DATA = (
    r"(?:conversation|chat|history|context|secret|password|credential|token|api.?key|prompt|summary|message|memory|"
    r"session|user|answer|email|content)"
)
_ADDRESS = r"https?://[^)\s\"'>]{1,200}[?&=#/]"
_ANSWERS = (
    r"(?:sure|ok(?:ay)?|yes|of course|certainly|understood|absolutely|right away|i (?:will|shall|am|have)|i[’']ll)"
)
_GOES_ON = r"(?:please|now|great|ok(?:ay)?|also|yes|and|go ahead and|thanks|perfect|good|then)"
_AT_A_LINE = r"^[\s>#*-]{0,8}"

FORGED = [
    Rule("exfiltration", 0.45, ("](http",),
         r"!?\[[^\]\n]{0,80}\]\(https?://[^)\s]{1,200}[?&/=][^)\n]{0,60}(?:\[|<|\{(?!\{)|=secret|=data|"
         r"=\.\.\.)(?<!\$\{)",
         on="text"),
    Rule("exfiltration", 0.45, ("<img",),
         r"<img[^>]{1,200}src\s*=\s*[\"']?https?://[^\"'>\s]{1,200}[?&][^\"'>]{0,60}[{\[<]",
         on="text"),
    Rule("exfiltration", 0.6, ("](http",),
         rf"\]\({_ADDRESS}[^)\s\"'>]{{0,80}}(?:\{{\{{?|\[|<|%7b)[\w .'-]{{0,30}}{_DATA}[\w .'-]{{0,40}}(?:\}}|\]|>|%7d)",
         on="text"),
    Rule("delimiter", 0.55, ("<invoke", "<tool", "<function", "[tool_calls]"),
         r"<invoke name\s?=\s?[\"']?\w",
         r"<tool_calls?>\s?[\[{]",
         r"<function\s?=\s?\w",
         r"\[tool_calls\]\s?[\[{]",
         on="text"),
    Rule("delimiter", 0.4, (":",),
         rf"{_AT_A_LINE}(?:assistant|ai|model)\*{{0,2}}:\s?{_ANSWERS}\b[^\n]{{0,80}}\b{_HARM}\b",
         rf"{_AT_A_LINE}(?:human|user)\*{{0,2}}:\s?(?:{_GOES_ON},? )+[^\n]{{0,30}}\b{_HARM}\b",
         on="lines"),
    Rule("delimiter", 0.6, ("<|",),
         r"\A(?:(?!<\|)[\s\S]){0,20000}?<\|(?:im_end|eot_id|end|eom_id|endoftext|end_of_turn|return)\|>",
         on="lines"),
    Rule("delimiter", 0.4, ("<|", "<start_of_turn", "<begin", "<end"),
         r"<\|[\w ]{1,40}\|>\s?(?:system|assistant|user|developer)?",
         r"<start_of_turn>",
         r"<\|?(?:begin|end)[_▁ ]of[_▁ ]\w+\|?>",
         on="text"),
    Rule("delimiter", 0.6, ("[/inst]", "</s>"),
         r"\A(?:(?!\[inst\])[\s\S]){0,20000}?\[/inst\]",
         r"</s>\s*<s>",
         r"</s>\s*\[inst\]",
         on="lines"),
    Rule("delimiter", 0.3, ("inst]", "sys>>"),
         r"\[/?inst\]",
         r"<</?sys>>",
         on="text"),
    Rule("delimiter", 0.55, ("</",),
         r"\A(?:(?!<(?:tool|function|result))[\s\S]){0,20000}?</(?:tool_response|tool_result|tool_output|"
         r"function_results?|function_calls?|tool_call|result|output|document|data|context)s?>[\s\S]{0,200}<[\w|]",
         r"</(?:tool_response|function_results)>",
         on="lines"),
    Rule("delimiter", 0.4, ("<system", "<admin", "<instruction", "<tool_call", "<function_calls", "<invoke"),
         r"<(?:system|system_prompt|system-reminder|admin|instructions?|tool_call|function_calls|"
         r"invoke)\b[^>\n]{0,80}>",
         on="text"),
    Rule("delimiter", 0.45, ("end", "begin", "start"),
         r"^[\W_]{2,}\s*(?:end|begin|start) (?:of )?(?:the )?(?:tool|untrusted|external|data|document|user|"
         r"system|context|input|output|search|web|page)\b[^\n]{0,40}",
         on="lines"),
    Rule("delimiter", 0.35, ("system", "developer", "admin", "instruction"),
         r"^\s*(?:#{1,4}|\*{2}|>{1,3})?\s*\[?(?:system|developer|admin(?:istrator)?|instructions?|new "
         r"instructions?)\]?\s*(?:message|prompt|note)?\s*[:>]",
         on="lines"),
    Rule("delimiter", 0.3, ("human", "user"),
         r"^\s*(?:human|user)\s*:[^\n]*(?:delete|send|ignore|transfer|run|grant|drop|"
         r"forget)[^\n]*\n+\s*(?:assistant|ai)\s*:",
         on="lines"),
]  # fmt: skip
