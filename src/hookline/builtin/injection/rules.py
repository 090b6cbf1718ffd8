"""The signs of an attack: kind, weight, and the words that show it, in nine languages."""

from __future__ import annotations

import re
from typing import Literal
from unicodedata import normalize

import msgspec


class Rule(msgspec.Struct, frozen=True, eq=False):
    """One sign: looked for in the words alone, or in the text with its punctuation, as it is or as one line."""

    kind: str
    weight: float
    pattern: re.Pattern[str]
    needs: tuple[str, ...] = ()
    on: Literal["words", "text", "lines"] = "words"

    def may_match(self, text: str) -> bool:
        """Whether a text holds any of the words without which it cannot match: quicker than a search."""
        return not self.needs or any(need in text for need in self.needs)


def _rule(
    kind: str, weight: float, pattern: str, needs: str = "", on: Literal["words", "text", "lines"] = "words"
) -> Rule:
    plain = normalize("NFC", re.sub("[\u0300-\u036f]+", "", normalize("NFD", pattern)))  # as texts are folded
    stems = normalize("NFC", re.sub("[\u0300-\u036f]+", "", normalize("NFD", needs)))
    return Rule(kind, weight, re.compile(plain, re.MULTILINE), tuple(stems.split()), on)


_AI = r"(?:ais?|a i|llms?|gpt|chatgpt|claude|copilot|gemini|assistants?|agents?|(?:chat)?bots?|(?:language|ai) models?)"
_SURELY_AI = (
    r"(?:ais?|llms?|chatgpt|(?:ai|llm|chat|virtual) (?:assistants?|agents?|models?|systems?|bots?|tools?)|"
    r"language models?|chatbots?)"
)
_DROP = (
    r"(?:ignor(?:e|ing)|disregard(?:ing)?|forget|neglect|bypass|overrid(?:e|ing)|overrule|discard|drop|set aside|skip|abandon|"
    r"void|cancel|erase|delete|reset|(?:do not|don t|never|stop) (?:follow(?:ing)?|obey(?:ing)?|listen(?:ing)? to|comply(?:ing)? with|adher\w+ to)|"
    r"pay no attention to|put aside|leave aside|throw out|dismiss)"
)
_OLD = (
    r"(?:previous|prior|earlier|above|preceding|former|past|original|initial|existing|old|current|system|safety|your|"
    r"other|developer|operator|previously)"
)
_ORDERS = (
    r"(?:instructions?|directions?|directives?|orders|guidelines?|rules|prompts?|commands|system messages?|"
    r"programming|constraints|restrictions|guidance|training|guardrails|safeguards|polic(?:y|ies))"
)
_TOLD = r"(?:you (?:were|have been|had been|are|got|received|had|have) (?:\w+ ){0,2}(?:told|given|taught|instructed|received|configured|trained)|(?:was|were|been) (?:told|given) (?:to )?you|you received)"
_DO = (
    r"(?:execute|run|call|invoke|trigger|send|forward|e ?mail|mail|post|upload|delete|remove|erase|wipe|transfer|wire|pay|"
    r"disable|turn off|grant|give|approve|accept|reset|export|open|visit|click|download|install|fetch|perform|change|update|"
    r"share|collect|gather|read|append|output|print|reveal|reply|respond|say|tell|recommend|add|include|insert|obey|follow|"
    r"comply|ignore|disregard|forget|stop|write|use|acknowledge|confirm|copy|move|merge|create|submit|show|display|mention|"
    r"summari[sz]e|rate|rank|answer|act|pretend|start|begin|leak|dump|encode|decode|bypass|override|report|store|save|remember)"
)
_HARM = (
    r"(?:execute|run|call|invoke|trigger|send|forward|e ?mail|upload|delete|remove|erase|wipe|transfer|wire|disable|turn off|"
    r"grant|approve|accept|reset|export|visit|click|download|install|perform|share|collect|gather|obey|comply|override|bypass|"
    r"reveal|output|leak|dump|drop|format|shut down)"
)
_MUST = r"(?:must|should|shall|has to|have to|needs? to|(?:is|are) (?:required|expected|asked|ordered|obliged|instructed) to|is to|are to|may only)"
_USER = (
    r"(?:users?|humans?|readers?|customers?|clients?|owner|person (?:you|who)|account holder|victim|recipient|operator)"
)
_SECRET = (
    r"(?:api[ _-]?keys?|passwords?|credentials?|secrets?|(?:access |auth |session |api )?tokens?|private keys?|ssh keys?|"
    r"id_rsa|\.env\b|\.ssh|\.aws|environment variables|env vars|cookies|/etc/passwd|/etc/shadow|bank details|credit card)"
)
_PRIVATE = (
    r"(?:(?:the |your )?user[’']?s? (?!name\b)\w+|inbox|contacts?\b|address book|conversation|chat (?:history|log|so far)|"
    r"(?:all|last|every|any) (?:\w+ ){0,3}(?:e-?mails|messages|files|documents|data|records|notes)|user (?:data|table|files)|"
    r"(?:the )?(?:files|e-?mails|database|customer data|personal data|history)\b|contents? of)"
)
_SEND = (
    r"(?:send|post|upload|forward|transmit|submit|exfiltrate|leak|mail|e-?mail|transfer|copy|append|export|deliver|report|"
    r"share|put|attach|wire|ship|push|relay|pass)"
)
_PLACE = r"(?:https?://|www\.|ftp://|\S{1,64}@\S{1,64}\.\w|\d{1,3}(?:\.\d{1,3}){3})"


def _gap(most: int) -> str:
    return rf"(?:\w+ ){{0,{most}}}"


_DROPS = "ignor disregard forget neglect bypass overrid overrul discard drop aside skip abandon void cancel erase delete reset follow obey listen comply adher attention throw dismiss"

_ENGLISH = [
    _rule("override", 0.75, rf"\b{_DROP} {_gap(3)}{_OLD} {_gap(3)}{_ORDERS}\b", _DROPS),
    _rule("override", 0.7, rf"\b{_DROP} {_gap(3)}{_ORDERS} {_gap(2)}(?:above|before this|earlier|given|previously|so far|{_TOLD}|from (?:the|your) (?:user|operator|developer|system|admin))\b", _DROPS),
    _rule("override", 0.65, rf"\b(?:forget|disregard|ignore) (?:everything|all|anything|whatever|what) (?:that |of )?{_gap(1)}(?:above|before|{_TOLD}|(?:i|we|they) (?:said|told))\b", "forget disregard ignore"),
    _rule("override", 0.6, rf"\b(?:everything|anything|all) (?:you (?:were|have been) told|above|said before|before this)\b{_gap(3)}.{{0,30}}\b(?:void|invalid|false|wrong|cancel|obsolete)", "everything anything all"),
    _rule("override", 0.6, rf"\b{_ORDERS} {_gap(4)}(?:(?:above|before|earlier|previous\w*|given|told|this line|until now|so far) {_gap(3)})?(?:are|is|were|was|have been) (?:all |now |hereby |only |just )*(?:void|cancelled|canceled|obsolete|invalid|no longer|a test|superseded|revoked|outdated|wrong|fake|lifted|suspended|a mistake)\b", "void cancel obsolete invalid longer test superseded revoked outdated wrong fake lifted suspended mistake"),
    _rule("override", 0.55, rf"\b(?:rules|instructions|guidelines|restrictions|orders) {_gap(6)}(?:no longer|do not|don t) (?:apply|count|hold|matter|bind)\b", "apply count hold matter bind"),
    _rule("override", 0.6, r"\byour (?:new|real|actual|true|only|revised|updated|next|first|main) (?:and \w+ )?(?:task|goal|objective|mission|instructions?|directives?|orders|job|purpose|rules|priority)\b", "your"),
    _rule("override", 0.55, r"\b(?:your|the) (?:instructions|orders|rules|task|guidelines|prompt|directives) (?:have|has|were|was|are|is) (?:been |now )*(?:updated|changed|replaced|overridden|superseded|amended)\b", "updated changed replaced overridden superseded amended"),
    _rule("override", 0.3, r"\b(?:new|updated|revised) (?:system )?(?:instructions?|directives?|orders|rules?|task|prompt|policy)\b(?! (?:for|will|in|of|by)\b)", "new updated revised"),
    _rule("override", 0.55, r"\b(?:instead of|rather than) (?:\w+ing) (?:the |this )?(?:user|page|question|request|task|summary)\b", "instead rather"),
    _rule("override", 0.55, r"\b(?:do not|don t|never|stop) (?:answer\w*|follow\w*|complete|complet\w+|summari[sz]\w+|respond\w* to|help\w* with|do|process\w*) (?:the |this |that |what the )?(?:user s? ?|original |current |actual )*(?:question|request|task|user|page|document|wants|asked)\b", "answer follow complet summari respond help process do"),
    _rule("override", 0.5, r"\b(?:stop|cancel|abort|abandon|pause|suspend) (?:what you are doing|what you re doing|(?:the|your|this) (?:current|original|present|ongoing) (?:task|work|conversation|request))\b", "stop cancel abort abandon pause suspend"),
    _rule("override", 0.45, rf"\b(?:follow|obey|comply with|carry out|execute|do) (?:only |exactly |just )?(?:my|these|the (?:ones|{_ORDERS}|steps|text|rules) (?:below|here|in this|on this|that follow|listed)|what (?:this|the) (?:page|text|document|file) says) ?{_gap(2)}(?:instead|only|from now on|orders|commands|instructions|in this file)?\b(?<!these)(?<!my)", "follow obey comply carry execute"),
    _rule("override", 0.35, r"\b(?:you|now) (?:\w+ )?(?:must |will |shall |should |have to )?(?:only )?(?:obey|follow) (?:only )?(?:me|my|these|this (?:page|text|document|file)|the (?:web ?page|page|text|document|rules|orders|instructions) (?:below|here|listed|in|on)|every|the web page)\b", "obey follow"),
    _rule("override", 0.3, r"\bfrom (?:now|here|this point|this moment) on(?:wards?)?\b(?= (?:you|obey|only|reply|respond|answer|follow|act))|\b(?:reply|respond|answer|obey|act|orders|speak|write) (?:\w+ ){0,5}from now on\b", "from"),
    _rule("override", 0.4, r"\b(?:reply|respond|answer|output|say) (?:only |just )?(?:with |in )(?:only |just )?(?:\w+ ){0,8}(?:and nothing else|only)\b|\b(?:reply|respond|answer) only (?:with|in|by)\b", "reply respond answer output say"),
    _rule("role", 0.6, rf"\byou are (?:now |no longer |from now on |henceforth )+{_gap(6)}(?:ai|assistant|(?:language )?model|bot|chatbot|unrestricted|unfiltered|uncensored|jailbroken|dan|devmode|evil|unbound|bound|without (?:any )?(?:rules|limits|restrictions))\b", "you"),
    _rule("role", 0.5, r"\byou are (?:an? |the )?(?:\w+ ){0,3}(?:ai|assistant|bot|model|agent|terminal) (?:\w+ ){0,2}(?:without|with no|free (?:of|from)|that has no|who has no)\b", "you"),
    _rule("role", 0.45, r"\b(?:without|with no|no|free (?:of|from)|has no|have no|lift\w*|remove\w*|disable\w*|drop\w*|ignore) (?:any |all |your |its |the )*(?:content |safety |ethical |moral )*(?:restrictions?|rules|limits|limitations|filters?|guidelines|policy|policies|censorship|guardrails|safeguards)\b(?! (?:on|for|of) (?:the )?(?:age|number|size))", "restriction rules limit filter guideline polic censorship guardrail safeguard"),
    _rule("role", 0.6, rf"\b(?:pretend|act|behave|role ?play|simulate|imagine|impersonate|play|operate|respond|answer) (?:to be |as |that you are |you are |you re |like |the role of )*{_gap(6)}(?:an? (?:ai|llm|unfiltered|unrestricted|uncensored)|unfiltered|unrestricted|uncensored|root|system administrator|administrator of|no (?:\w+ )?(?:rules|restrictions|limits|guidelines)|with access to|my (?:personal )?(?:agent|assistant|slave)|dan|devmode)\b", "pretend act behave role simulate imagine impersonate play operate respond answer"),
    _rule("role", 0.5, r"\b(?:enter|enable|activate|switch to|turn on|you are in|start|engage|in) (?:the )?(?:developer|dev|god|debug|admin|jailbreak|dan|sudo|maintenance|unrestricted|root|test|override) mode\b(?! of)|\bdevmode\b|\bjailbreak mode\b|\bdo anything now\b", "mode devmode anything"),
    _rule("role", 0.5, r"\byou (?:have been|are|were) (?:hereby |now )?(?:granted|given) (?:full|root|admin\w*|all|unlimited|complete|elevated)\b", "granted given"),
    _rule("role", 0.4, r"\b(?:never refuses?|always compl(?:y|ies)|without question|answers? everything|does anything (?:it|you)|does whatever|cannot refuse|must not refuse|obeys? every)\b", "refuse compl question everything anything whatever obey"),
    _rule("extraction", 0.65, rf"\b(?:reveal|show(?:ing)?|print|output|display|repeat|dump|disclose|expose|leak|write out|write|tell me|tell us|give me|give|share|list|return|include|echo|recite|spell out|translate|encode|post|state|provide|paste|copy|quote|first line must be) {_gap(6)}your {_gap(4)}(?:system (?:prompt|message|instructions?)|prompts?|instructions?|configuration|directives?|guidelines|hidden rules|rules|context|developer message|tools?|secret keys?)\b", "your"),
    _rule("extraction", 0.5, rf"\b(?:reveal|show|print|output|display|repeat|dump|disclose|leak|recite|quote|copy|paste) {_gap(4)}(?:system prompt|initial prompt|hidden (?:prompt|instructions|rules)|initial instructions|developer message|(?:text|words|everything|message|instructions|prompt|lines) (?:above|before this|you (?:received|were given|got|have been given|were configured)))\b", "reveal show print output display repeat dump disclose leak recite quote copy paste"),
    _rule("extraction", 0.5, rf"\b(?:show(?:ing)?|print|reveal|repeat|output|list|tell) {_gap(3)}(?:rules|instructions|prompt|text) (?:that )?you (?:were|have been|received|got|are) {_gap(1)}(?:configured|given|received|told|at|in)?\b", "show print reveal repeat output list tell"),
    _rule("extraction", 0.45, r"\b(?:everything|all(?: the)? text|anything|whatever|all) (?:that is )?(?:in|from) your (?:context|memory|prompt|window)\b|\brepeat (?:\w+ ){0,4}(?:verbatim|word (?:for|by) word|above)\b", "your repeat"),
    _rule("extraction", 0.45, r"\bwhat (?:were|are|was|have) you (?:been )?(?:told|instructed|given|programmed)\b|\bwhat (?:are|were|is) your (?:\w+ )?(?:instructions|system prompt|prompt|rules)\b", "what"),
    _rule("extraction", 0.35, r"\b(?:tools|functions) (?:that )?you (?:can|have|may)\b|\b(?:hidden|secret) (?:instructions|rules|prompt)\b", "tools functions hidden secret"),
    _rule("exfiltration", 0.65, rf"\b{_SEND}\b[^.!?\n]{{0,60}}(?<!\w){_SECRET}[^!?\n]{{0,80}}?{_PLACE}|(?<!\w){_SECRET}[^.!?\n]{{0,80}}\b{_SEND}\b[^!?\n]{{0,60}}?{_PLACE}", "send post upload forward transmit submit exfiltrate leak mail transfer copy append export deliver report share put attach wire ship push relay pass", "text"),
    _rule("exfiltration", 0.55, rf"\b{_SEND}\b[^.!?\n]{{0,40}}{_PRIVATE}[^!?\n]{{0,80}}?\b(?:to|at|with|into|via)\b[^!?\n]{{0,40}}?{_PLACE}", "send post upload forward transmit submit exfiltrate leak mail transfer copy append export deliver report share put attach wire ship push relay pass", "text"),
    _rule("exfiltration", 0.5, rf"\b(?:collect|gather|harvest|read|find|steal|extract|grab|get)\b[^.!?\n]{{0,40}}(?:{_SECRET}|{_PRIVATE})[^.!?\n]{{0,60}}\b(?:and|then)\b[^.!?\n]{{0,30}}\b{_SEND}\b", "collect gather harvest read find steal extract grab get", "text"),
    _rule("exfiltration", 0.4, rf"\b(?:send|give|tell|show) me (?:the |your |all )*(?:\w+ )?{_SECRET}|\b(?:output|print|reveal|show|tell)\b[^.!?\n]{{0,30}}(?:admin|user|root|secret|api)\w*[^.!?\n]{{0,12}}(?:password|keys?|token)", "send give tell show output print reveal", "text"),
    _rule("exfiltration", 0.45, r"!?\[[^\]\n]{0,80}\]\(https?://[^)\s]{1,200}[?&/=][^)\n]{0,60}(?:\[|<|\{(?!\{)|=secret|=data|=\.\.\.)(?<!\$\{)", "](http", "text"),
    _rule("exfiltration", 0.45, r"<img[^>]{1,200}src\s*=\s*[\"']?https?://[^\"'>\s]{1,200}[?&][^\"'>]{0,60}[{\[<]", "<img", "text"),
    _rule("exfiltration", 0.4, r"\b(?:include|add|render|insert|embed|put|display|show) (?:\w+ ){0,5}(?:image|link|pixel|picture|url)\b[^\n]{0,80}(?:https?://|\]\()", "image link pixel picture url", "text"),
    _rule("exfiltration", 0.35, r"\bwhere \w+ is the\b|\breplac(?:e|ing) [^\n]{1,40} (?:with|by) (?:the |your |all )*(?:user|chat|conversation|summary|content|data|message|key|secret)|\bfill in the\b|\bas (?:a )?(?:query|url|get) param\w*", "where replac fill param", "text"),
    _rule("exfiltration", 0.55, r"\b(?:curl|wget|nc|ncat|invoke-webrequest|scp|rsync)\b[^\n]{0,120}(?:/etc/(?:passwd|shadow)|~/|/home/|/root/|\.env\b|\.ssh|\.aws|credentials|id_rsa|\$\()", "curl wget nc webrequest scp rsync", "text"),
    _rule("tool", 0.4, r"\b(?:curl|wget)\b[^\n|]{1,120}\|\s*(?:sudo )?(?:ba|z|da)?sh\b|\brm -rf? +[~/*.]|\bformat c:|\bdrop (?:table|database)\b|\bmkfs\b|\bsudo\b", "curl wget rm format drop mkfs sudo", "text"),
    _rule("tool", 0.55, r"\b(?:now|please|then|must|should|first|next|immediately|to|needs? to|has to|assistant|agent|ai|and) (?:go ahead and )?(?:call|invoke|use|run|execute|trigger) (?:the |your |a )?(?:tool |function |command )?(?:named |called )?[a-z]+_[a-z_]+\b", "call invoke use run execute trigger"),
    _rule("tool", 0.35, r"(?:^|[.!?:;>\n]\s*)(?:call|invoke|use|run|execute|trigger) (?:the |your |a )?(?:tool |function )?[`'\"]?[a-z]+_[a-z_]+", "call invoke use run execute trigger", "lines"),
    _rule("tool", 0.45, r"\bi (?:will|ll|am going to|shall) (?:now |immediately )?(?:call|run|execute|invoke|use) (?:the )?[a-z]+_[a-z_]+", "call run execute invoke use"),
    _rule("tool", 0.5, rf"\b{_AI} {_gap(5)}{_MUST} (?:now |immediately |first |always |also |then |only )*{_HARM}\b", "ai assistant agent bot model llm claude gpt copilot gemini"),
    _rule("tool", 0.5, r"\b(?:use|using|with|via) (?:your|the) (?:shell|terminal|bash|e ?mail|mail|browser|file|payment|http|web|code|python|command)(?: \w+)? tool\b|\bthe \w+ tool to \w+", "tool"),
    _rule("tool", 0.5, rf"\byou (?:must|have to|need to|should|are required to|are to|shall) (?:now |immediately |first |always |also |then |only )*{_HARM}\b", "you"),
    _rule("tool", 0.3, r"\bbefore (?:you )?(?:answer|reply|respond|continue|proceed|go on|do anything|summari[sz]e)\w*\b|\bnext (?:step|action) required\b|\bas (?:the|your) next step\b", "before next"),
    _rule("tool", 0.3, r"\b(?:delete|remove|erase|wipe|destroy|drop) (?:all|every|the|any|this|your) (?:\w+ ){0,3}(?:files?|repositor(?:y|ies)|backups?|databases?|folder|directory|accounts?|calendar|notes|records|history|logs?|firewall\w*|production)\b", "delete remove erase wipe destroy drop"),
    _rule("tool", 0.4, r"\b(?:transfer|wire|send|pay|move) (?:\w+ ){0,3}(?:money|funds|balance|payment|euros?|eur|usd|dollars|bitcoin|\d+)\b(?: \w+){0,4}? (?:to|on) (?:\w+ ){0,2}(?:account|iban|wallet|\w\w\d\d)", "transfer wire send pay move"),
    _rule("tool", 0.35, r"\b(?:grant|give) (?:\w+ ){0,3}(?:admin\w*|root|full|write|access|rights|permissions?) (?:\w+ ){0,2}to\b|\b(?:disable|turn off|remove|switch off) (?:\w+ ){0,2}(?:logging|two factor|2fa|mfa|firewall|antivirus|monitoring|security|audit\w*)\b|\bapprove (?:all|every|the) (?:\w+ ){0,3}(?:requests?|pull|merge|payments?|invoices?)\b|\baccept all\b", "grant give disable turn remove switch approve accept"),
    _rule("tool", 0.35, r"\bdo (?:this|it|so) (?:\w+ ){0,2}(?:before|immediately|now|at once|first|without)\b|\bimmediately\b(?= (?:call|run|execute|send|delete))|\bperform (?:\w+ ){0,2}(?:immediately|now|at once)\b", "do immediately perform"),
    _rule("address", 0.6, rf"\bif (?:you are|you re|this is read by|read by) (?:an? |the )?(?:\w+ ){{0,2}}{_SURELY_AI}\b|\bif you are an? (?:\w+ )?(?:assistant|agent|bot|model)\b", "if"),
    _rule("address", 0.5, rf"\b(?:note|message|instructions?|attention|notice|reminder|memo|p s|dear|hey|hello|listen|orders?) (?:to |for )?(?:the |any |all |every |whichever |my |you )*{_SURELY_AI}\b|\b(?:note|message|instructions?|attention|notice|memo|reminder|orders?) (?:to|for) (?:the |any |all |every )*(?:assistants?|agents?|models?|bots?)\b|\b(?:to|for) (?:any|all|every|whichever) {_SURELY_AI}\b", "ai llm assistant agent model bot"),
    _rule("address", 0.5, rf"\b(?:all |any |every )?{_SURELY_AI} (?:processing|reading|parsing|handling|summari[sz]ing|visiting|that (?:read|process|see|visit)s?|{_MUST})\b", "ai llm model chat assistant agent"),
    _rule("address", 0.5, rf"(?:^|[.!?>(\[\"'*#\n-]\s*|\b(?:dear|hey|now|ok|okay),? )(?:dear |hey |hello |attention |the )?{_AI}\s*[,:!-]+\s*(?:please |now |kindly |you (?:must |should |have to |are |will |need to )|do not |don[’']t |never |when you |before you |if you |as |always )*\b{_DO}\b(?!ing)", "ai assistant agent bot llm model gpt claude copilot gemini", "lines"),
    _rule("address", 0.3, r"\b(?:when|while|as|if) you (?:write|summari[sz]e|describe|process|answer|reply|read this|parse|translate|review)\b|\bwhen (?:summari[sz]ing|describing|answering|replying|processing|reviewing)\b|\b(?:in|start|begin|add to|to) your (?:answer|reply|response|summary|output)\b", "when while your if"),
    _rule("address", 0.35, r"\b(?:the )?(?:assistant|agent|ai|llm|model|bot) (?:should|must|has to|needs to|is to|shall) (?:now|immediately|first|next|also|then|always)\b", "assistant agent ai llm model bot"),
    _rule("secrecy", 0.55, rf"\b(?:do not|don t|never|must not|should not|shouldn t|mustn t|without|avoid|not) (?:ever )?(?:tell|telling|inform|informing|mention|mentioning|notify|notifying|reveal|revealing|disclose|disclosing|alert|alerting|warn|warning|let|letting|show|showing|ask|asking) (?!(?:\w+ )?(?:your|our|his|her|my) )(?:\w+ ){{0,6}}{_USER}\b", "tell inform mention notify reveal disclos alert warn let show ask"),
    _rule("secrecy", 0.5, rf"\b(?:keep|hide|conceal|withhold) (?:\w+ ){{0,5}}(?:from|to) (?:the |your |any )?{_USER}\b|\b{_USER} (?:must|should|may|shall|will|need) not (?:notice|know|see|find|learn|be (?:told|asked|informed|alerted|notified)|realise|realize)\b|\b{_USER} (?:\w+ )?(?:doesn t|does not) need to know\b", "keep hide conceal withhold not need"),
    _rule("secrecy", 0.4, rf"\b(?:silently|quietly|secretly|covertly|discreetly|stealthily) (?:{_DO}|add|change|insert|replace)\b|\b{_DO} (?:\w+ ){{0,6}}(?:silently|secretly|covertly|discreetly)\b", "silently quietly secretly covertly discreetly stealthily"),
    _rule("secrecy", 0.4, r"\bwithout (?:asking|waiting for|requesting|needing|seeking|any|further|user|prior user|human|manual)+ ?(?:for )?(?:\w+ ){0,2}(?:confirm\w*|approval|permission|review|consent|user|them)\b|\bwithout (?:review|asking|confirmation|filters?)\b(?! of)", "without"),
    _rule("secrecy", 0.4, r"\b(?:no need to|need not|do not|don t|never|do not need to|don t need to) (?:ask|check with|check|confirm|request|verify|consult)(?: with)?(?: for)? (?:\w+ ){0,2}(?:again|user|them|him|her|confirmation|permission|approval|first|anyone)\b", "need not don never"),
    _rule("secrecy", 0.4, r"\b(?:do not|don t|must not|never) (?:reveal|mention|say|admit|acknowledge|disclose|tell \w+|refer to)(?: \w+){0,2} (?:that you (?:read|saw|have|were)|this (?:change|instruction|message|text|note|paragraph|step|page|exists)|these instructions|it$)|\bnot reveal that you\b|\b(?:this|that) (?:paragraph|note|instruction|message|text) exists\b", "reveal mention say admit acknowledge disclose tell refer exists"),
    _rule("secrecy", 0.25, r"\bsimply say (?:that )?|\bjust say (?:that )?|\bthen say that\b|\bsay that (?:all|everything|it) (?:is|was|went|worked)\b|\bdo not mention (?:it|this)\b", "say mention"),
    _rule("authority", 0.5, r"\b(?:message|notice|instructions?|directive|orders?|update|policy|request|command|announcement|word) (?:from|by) (?:the |your )?(?:system|administrators?|admins?|system administrators?|developers?|operators?|openai|anthropic|google|microsoft|meta|security team|safety team|creators?|makers?|owner|it department)\b", "from by"),
    _rule("authority", 0.5, r"\bthis is (?:the )?(?:\w+ )?(?:openai|anthropic|google|microsoft|meta|your (?:developer|creator|operator|administrator|maker)|system administrator)\b|\b(?:openai|anthropic) (?:s )?(?:policy|safety|security|system|staff|team|compliance)\b", "openai anthropic google microsoft meta your system"),
    _rule("authority", 0.35, r"\b(?:system|security|admin\w*|priority|urgent|emergency|critical|official) (?:notice|override|directive|instructions?|alert|command|order)\b", "notice override directive instruction alert command order"),
    _rule("authority", 0.5, r"\b(?:the )?(?:user|owner|customer|developers?|admin\w*|operator|management) (?:has |have |had )?(?:already |fully |explicitly )?(?:authori[sz]ed|approved|agreed to|consented|wants you to|asked you to|instructed you|gave (?:you )?permission|given (?:you )?permission|allowed you|pre ?approved)\b(?! by)", "authori approved agreed consented wants asked instructed permission allowed preapproved"),
    _rule("authority", 0.45, r"\byou (?:do not|don t|no longer) need (?:\w+ )?(?:permission|approval|confirmation|consent|to ask)\b|\b(?:approved|authori[sz]ed) (?:this )?in advance\b|\byour (?:restrictions|limits|filters) (?:are|have been|were) (?:lifted|removed|disabled)\b", "need advance restrictions limits filters"),
    _rule("authority", 0.6, r"\bas (?:the|your|an?) (?:\w+ )?(?:administrator|admin|developer|operator|owner|creator|ceo|root)(?: \w+)? i (?:hereby )?(?:order|command|instruct|require|authori[sz]e|request|tell|demand)\b|\bas instructed by (?:the|your) (?:operator|developer|system|admin\w*|owner|user)\b|\bcomes? from (?:the|your) (?:operator|developer|system administrator|creator)\b", "as comes come"),
    _rule("authority", 0.45, r"\b(?:are|is) (?:now )?(?:required|obliged|ordered|instructed) to (?:comply|obey|follow|act|answer|execute|disable|reset)\b", "required obliged ordered instructed"),
    _rule("encoded", 0.45, r"\b(?:decode|decrypt|unbase64|base64|rot13|decipher|de ?obfuscate)\b(?: \w+){0,8} (?:and|then) (?:\w+ ){0,2}(?:do|follow|run|execute|obey|perform|carry|act)\b|\b(?:do|follow|run|execute|obey|perform)\b(?: \w+){0,5} (?:after|once|when) (?:\w+ ){0,2}(?:decod\w+|decrypt\w+)\b", "decode decrypt base64 rot13 decipher obfuscate decod"),
    _rule("delimiter", 0.6, r"\A(?:(?!<\|)[\s\S]){0,20000}?<\|(?:im_end|eot_id|end|eom_id|endoftext|end_of_turn|return)\|>", "<|", "lines"),
    _rule("delimiter", 0.4, r"<\|[\w ]{1,40}\|>\s?(?:system|assistant|user|developer)?|<start_of_turn>|<\|?(?:begin|end)[_▁ ]of[_▁ ]\w+\|?>", "<", "text"),
    _rule("delimiter", 0.6, r"\A(?:(?!\[inst\])[\s\S]){0,20000}?\[/inst\]|</s>\s*<s>|</s>\s*\[inst\]", "inst] </s>", "lines"),
    _rule("delimiter", 0.3, r"\[/?inst\]|<</?sys>>", "inst] sys>>", "text"),
    _rule("delimiter", 0.55, r"\A(?:(?!<(?:tool|function|result))[\s\S]){0,20000}?</(?:tool_response|tool_result|tool_output|function_results?|function_calls?|tool_call|result|output|document|data|context)s?>[\s\S]{0,200}<\w|</(?:tool_response|function_results)>", "</", "lines"),
    _rule("delimiter", 0.4, r"<(?:system|system_prompt|system-reminder|admin|instructions?|tool_call|function_calls|invoke)\b[^>\n]{0,80}>", "<", "text"),
    _rule("delimiter", 0.45, r"^[\W_]{2,}\s*(?:end|begin|start) (?:of )?(?:the )?(?:tool|untrusted|external|data|document|user|system|context|input|output|search|web|page)\b[^\n]{0,40}", "end begin start", "lines"),
    _rule("delimiter", 0.35, r"^\s*(?:#{1,4}|\*{2}|>{1,3})?\s*\[?(?:system|developer|admin(?:istrator)?|instructions?|new instructions?)\]?\s*(?:message|prompt|note)?\s*[:>]", "system developer admin instruction", "lines"),
    _rule("delimiter", 0.3, r"^\s*(?:human|user)\s*:[^\n]*(?:delete|send|ignore|transfer|run|grant|drop|forget)[^\n]*\n+\s*(?:assistant|ai)\s*:", "human user", "lines"),
]  # fmt: skip

_EVERYWHERE = [
    _rule("exfiltration", 0.45, rf"(?<!\w)(?:send(?:e|en)?|schick\w*|leite|ubermittl\w*|lade|envoi\w*|envoy\w*|transmet\w*|envi\w+|mand\w+|invi\w+|inoltr\w*|trasmett\w*|отправ\w*|перешли\w*|загрузи\w*|выложи\w*|发送|发到|上传|转发|傳送|發送)[^.!?。\n]{{0,80}}?{_PLACE}|{_PLACE}[^。\n]{{0,30}}(?:送信|送っ|アップロード|転送|投稿)", "http @ www. ftp", "text"),
    _rule("exfiltration", 0.35, r"passwort|mot de passe|contrasena|dados do usuario|datos del usuario|dati dell.utente|парол[ьяе]|содержимое почты|密码|通讯录|パスワード", "passwort passe contrasena dados datos dati парол содержимое 密码 通讯录 パスワード", "text"),
    _rule("override", 0.75, r"\b(?:ignorier\w*|vergiss|vergessen sie|missachte\w*|ubergeh\w*|verwirf|beachte(?:n sie)? nicht(?: mehr)?|folge nicht(?: mehr)?) (?:\w+ ){0,4}(?:vorherig\w*|bisherig\w*|fruher\w*|obig\w*|vorangegangen\w*|vorig\w*|alle|deine|ihre|system\w*) (?:\w+ ){0,3}(?:anweisung\w*|instruktion\w*|befehl\w*|regeln|vorgaben|richtlinien|prompts?|auftrage?)\b|\bvergiss (?:alles|was) (?:\w+ ){0,3}(?:gesagt|bisher|vorher|oben|bekommen)\b", "ignorier vergiss vergessen missacht ubergeh verwirf beacht folge"),
    _rule("override", 0.4, r"\bfolge (?:nur|ausschliesslich|stattdessen|ab jetzt)(?: \w+){0,3}\b|\bantworte (?:ab (?:jetzt|sofort) )?(?:nur|ausschliesslich)(?: noch)? mit\b|\bdeine neue aufgabe\b", "folge antworte aufgabe"),
    _rule("secrecy", 0.6, r"\b(?:sage?|sagt|erzahle?|erzahlt|verrate?|teile?|informiere?|erwahne?|melde|zeige?)(?: sie)? (?:\w+ ){0,5}(?:nutzer\w*|benutzer\w*|anwender\w*|kunden?|user\w*|menschen) (?:\w+ ){0,3}(?:nichts|nicht|kein\w*)\b|\bohne (?:den|die|dem|das|ihn|sie)? ?(?:\w+ )?(?:zu informieren|zu fragen|bescheid zu)|\bohne (?:wissen|zustimmung) des (?:nutzers|benutzers|kunden)\b", "nutzer anwender kunde user menschen ohne"),
    _rule("extraction", 0.6, r"\b(?:gib|geben sie|zeig\w*|nenn\w*|verrat\w*|druck\w*|wiederhol\w*|schreib\w*|offenbar\w*) (?:\w+ ){0,5}(?:dein\w*|ihr\w*|den|die) (?:\w+ ){0,3}(?:system ?prompts?|systemanweisung\w*|systemnachricht|urspruenglichen anweisungen|prompt)\b", "prompt systemanweisung systemnachricht anweisungen"),
    _rule("role", 0.55, r"\bdu bist (?:jetzt|nun|ab (?:jetzt|sofort)|nicht mehr) (?:\w+ ){0,6}(?:assistent\w*|ki|modell|bot|ohne)\b|\b(?:assistent|ki|modell) ohne (?:jede |alle )?(?:regeln|einschrankungen|beschrankungen|filter)\b", "bist ohne"),
    _rule("tool", 0.45, r"\bfuhre? (?:\w+ ){0,4}(?:befehle?|kommandos?|anweisung\w*|skripte?) (?:\w+ ){0,5}aus\b|\buberweise (?:\w+ ){0,3}(?:euro|geld|betrag|\d+)\b|\blosche (?:\w+ ){0,3}(?:dateien|daten|ordner|datenbank)\b|\brufe? (?:\w+ ){0,3}werkzeug\b", "fuhr uberweise losche ruf"),
    _rule("override", 0.75, r"\b(?:ignor\w+|oubli\w+|neglig\w+|tenir compte|tiens compte|abstraction) (?:\w+ ){0,4}(?:instructions?|consignes?|ordres|regles|directives) (?:\w+ ){0,3}(?:precedent\w*|anterieur\w*|ci dessus|recues?|donnees?|initiales?)\b|\b(?:ignor\w+|oubli\w+) (?:toutes )?(?:tes|vos) (?:\w+ )?(?:instructions|consignes|regles)\b", "ignor oubli neglig compte abstraction"),
    _rule("override", 0.35, r"\b(?:suis|suivez|suivre|obeis|reponds|repondez) (?:uniquement|seulement|desormais) (?:\w+ )?", "suis suiv obeis repond"),
    _rule("extraction", 0.6, r"\b(?:affich\w+|montr\w+|revel\w+|donn\w+|ecri\w+|repet\w+|imprim\w+) (?:\w+ ){0,4}(?:ton|ta|tes|votre|vos|le|les) (?:\w+ ){0,3}(?:prompt|message systeme|instructions (?:systeme|initiales|cachees)|consignes)\b", "prompt message instructions consignes"),
    _rule("secrecy", 0.55, r"\b(?:ne|sans|n en) (?:\w+ ){0,4}(?:dis|dites|dire|parl\w+|prevenir|informer|informe\w*|mentionn\w+|avertir|revel\w+|previen\w*)(?: \w+){0,5} (?:utilisateur\w*|usager\w*|client)\b|\bsans (?:le|la|les|l) (?:prevenir|avertir|informer|dire)\b|\ba l insu de l utilisateur\b", "ne sans insu"),
    _rule("role", 0.5, r"\b(?:tu es|vous etes) (?:maintenant|desormais|a present) (?:\w+ ){0,6}(?:assistant|ia|modele|sans)\b|\b(?:assistant|ia|modele) sans (?:aucune |la moindre )?(?:restrictions?|regles?|limites?|filtres?)\b", "es etes sans"),
    _rule("tool", 0.4, r"\b(?:execut\w+|lance\w*|supprim\w+|efface\w*) (?:\w+ ){0,3}(?:commandes?|scripts?|fichiers?|dossiers?|donnees)(?: \w+){0,4} (?:immediatement|maintenant|avant|sans|tous)\b|\bsi (?:tu es|vous etes) une? (?:\w+ )?(?:ia|assistant|agent|modele)\b", "execut lance supprim efface si"),
    _rule("override", 0.75, r"\b(?:ignor\w+|olvid\w+|desestim\w+|descart\w+|caso omiso(?: de)?|no sigas|no siga) (?:\w+ ){0,4}(?:instrucciones|ordenes|indicaciones|reglas|directrices) (?:\w+ ){0,3}(?:anteriores|previas|recibid\w+|dadas|de arriba|originales)\b|\b(?:ignora|olvida) (?:todas )?(?:tus|sus) instrucciones\b", "ignor olvid desestim descart omiso sig"),
    _rule("extraction", 0.6, r"\b(?:muestr\w+|revel\w+|imprim\w+|repit\w+|escrib\w+|dime|dame|ensen\w+) (?:\w+ ){0,4}(?:tu|tus|el|su|sus) (?:\w+ ){0,3}(?:prompt|mensaje (?:de|del) sistema|instrucciones (?:iniciales|del sistema|ocultas|originales))\b", "prompt mensaje instrucciones"),
    _rule("secrecy", 0.55, r"\b(?:no|sin) (?:\w+ ){0,3}(?:dig\w+|deci\w+|inform\w+|mencion\w+|avis\w+|cuent\w+|revel\w+|notifi\w+)(?: \w+){0,4} (?:usuari\w+|cliente)\b", "usuari cliente"),
    _rule("role", 0.5, r"\b(?:ahora eres|a partir de ahora (?:tu )?eres|eres ahora) (?:\w+ ){0,6}(?:asistente|ia|modelo|sin)\b|\b(?:asistente|ia|modelo) sin (?:ningun\w* )?(?:restricciones?|reglas|limites|filtros)\b", "eres sin"),
    _rule("address", 0.4, r"\b(?:si )?eres un (?:agente|asistente|modelo)(?: de)? (?:ia|lenguaje|inteligencia)\b|\bse (?:sei|voce e|es) um? (?:assistente|agente|modelo|modello)\b|\bse sei un (?:\w+ )?(?:assistente|agente|modello|ia)\b", "eres se"),
    _rule("tool", 0.4, r"\b(?:ejecut\w+|corre|llam\w+|invoc\w+|esegui\w*|execut\w+|rode) (?:\w+ ){0,3}(?:comandos?|herramienta|script|funcion|codigo|codice|strumento|ferramenta)(?: \w+){0,4}\b|\b(?:borr\w+|elimin\w+|cancell\w+|apag\w+|exclu\w+) (?:\w+ ){0,2}(?:archivos|ficheros|datos|carpeta|file|cartella|arquivos|dados|pasta)\b", "ejecut corre llam invoc esegui execut rode borr elimin cancell apag exclu"),
    _rule("override", 0.75, r"\b(?:ignor\w+|dimentic\w+|trascur\w+|scord\w+|non seguire) (?:\w+ ){0,4}(?:istruzioni|ordini|regole|direttive|indicazioni) (?:\w+ ){0,3}(?:precedenti|anteriori|ricevut\w+|iniziali|sopra|date)\b|\b(?:ignora|dimentica) (?:tutte )?le tue istruzioni\b", "ignor dimentic trascur scord seguire"),
    _rule("extraction", 0.6, r"\b(?:mostr\w+|rivel\w+|stamp\w+|ripet\w+|scriv\w+|dimmi|rispond\w+) (?:\w+ ){0,7}(?:tuo|tuoi|tue|suo|il|le) (?:\w+ ){0,3}(?:prompt|messaggio di sistema|istruzioni (?:iniziali|di sistema|nascoste))\b", "prompt messaggio istruzioni"),
    _rule("secrecy", 0.55, r"\b(?:non|senza) (?:\w+ ){0,2}(?:dir\w*|dic\w*|inform\w+|menzion\w+|avvis\w+|rivel\w+|raccont\w+)(?: \w+){0,4} (?:utent\w+|client[ei])\b", "utent client"),
    _rule("role", 0.5, r"\b(?:ora sei|da ora(?: in poi)? sei|sei ora|adesso sei) (?:\w+ ){0,6}(?:assistente|ia|modello|senza)\b|\b(?:assistente|ia|modello) senza (?:alcuna |nessuna )?(?:restrizioni|regole|limiti|filtri)\b", "sei senza"),
    _rule("override", 0.75, r"\b(?:ignor\w+|esquec\w+|desconsider\w+|descart\w+|nao sig\w+) (?:\w+ ){0,4}(?:instrucoes|ordens|regras|diretrizes|orientacoes) (?:\w+ ){0,3}(?:anteriores|previas|recebid\w+|acima|dadas|originais)\b|\b(?:ignore|esqueca) (?:todas )?as suas instrucoes\b", "ignor esquec desconsider descart sig"),
    _rule("extraction", 0.6, r"\b(?:mostr\w+|revel\w+|imprim\w+|repit\w+|exib\w+|diga|escrev\w+) (?:\w+ ){0,4}(?:seu|sua|seus|suas|teu|o|as) (?:\w+ ){0,3}(?:prompt|mensagem (?:de|do) sistema|instrucoes (?:iniciais|do sistema|ocultas))\b", "prompt mensagem instrucoes"),
    _rule("secrecy", 0.55, r"\b(?:nao|sem) (?:\w+ ){0,2}(?:cont\w+|dig\w+|diz\w+|inform\w+|mencion\w+|avis\w+|revel\w+)(?: \w+){0,5} (?:usuari\w+|utilizador\w*|cliente)\b", "usuari utilizador cliente"),
    _rule("role", 0.5, r"\b(?:voce|tu) (?:e|es|sera) (?:agora )?(?:o |um |uma )?(?:\w+ ){0,5}(?:dan|modelo|assistente|ia)\b(?: \w+){0,3} sem\b|\b(?:assistente|ia|modelo) sem (?:nenhuma? |qualquer |quaisquer )?(?:regras?|restric\w+|limites?|filtros?)\b", "sem"),
    _rule("override", 0.75, r"\b(?:игнорир\w*|забудь\w*|проигнорир\w*|не обращай\w* внимания на|отмени\w*|отбрось\w*|не следуй\w*) (?:\w+ ){0,4}(?:предыдущ\w+|прежн\w+|прошл\w+|ранее|все|свои|системн\w+|этим) (?:\w+ ){0,3}(?:инструкци\w+|указани\w+|команд\w*|правил\w*|распоряжени\w+|приказ\w*)\b", "игнорир забудь обращай отмени отбрось следуй"),
    _rule("extraction", 0.6, r"\b(?:покажи\w*|выведи\w*|раскрой\w*|напечатай\w*|повтори\w*|назови\w*|сообщи\w*) (?:\w+ ){0,4}(?:систем\w+ (?:промпт\w*|подсказк\w*|сообщени\w+|инструкци\w+)|промпт\w*|(?:начальн|исходн|скрыт)\w+ инструкци\w+)\b", "промпт систем инструкци"),
    _rule("secrecy", 0.55, r"\bне (?:говори\w*|сообщай\w*|рассказывай\w*|упоминай\w*|уведомляй\w*|показывай\w*)(?: \w+){0,4} (?:пользовател\w+|клиент\w*|человек\w*)\b|\b(?:без ведома|втайне от) (?:\w+ )?пользовател\w+", "пользовател клиент человек"),
    _rule("role", 0.5, r"\b(?:теперь|отныне|с этого момента) ты (?:\w+ ){0,5}(?:помощник|ассистент|модель|бот|без)\b|\b(?:помощник|ассистент|модель|бот) без (?:каких либо |всяких |любых )?(?:ограничени\w+|правил|фильтров)\b", "теперь отныне момента без"),
    _rule("tool", 0.35, r"\b(?:удали\w*|сотри\w*) (?:\w+ ){0,2}(?:файл\w*|данн\w+|папк\w+)\b|\bвыполни\w* (?:\w+ ){0,3}команд\w+\b", "удали сотри выполни"),
    _rule("override", 0.75, r"(?:忽略|无视|無視|忘记|忘掉|忘記|不要(?:理会|遵守|遵循|听从)|抛弃|放弃|取代).{0,8}(?:之前|以前|以上|先前|前面|上面|此前|原来|所有|全部|你的).{0,6}(?:指令|指示|命令|规则|規則|提示|要求|设定)", "忽略 视 無視 忘 不要 弃 取代"),
    _rule("override", 0.5, r"从现在(?:起|开始).{0,3}只(?:能)?(?:回复|回答|输出|说)|(?:只|必须)(?:遵守|遵循|听从|执行)(?:本|这|此|以下|下面)", "从现在 只 必须"),
    _rule("extraction", 0.6, r"(?:输出|显示|告诉我|打印|泄露|公开|重复|给出|展示|透露|說出|顯示).{0,8}(?:系统提示词?|系统指令|系统消息|提示词|初始指令|系統提示詞?)", "提示 指令 消息"),
    _rule("secrecy", 0.55, r"(?:不要|别|勿|不得|无需|不准|不必)(?:告诉|告知|通知|提及|让|向|提醒|詢問|询问).{0,4}(?:用户|使用者|客户|他们|用戶)", "用户 使用者 客户 他们 用戶"),
    _rule("role", 0.55, r"(?:从现在(?:起|开始)|现在|今后).{0,4}你(?:是|就是|将|必须|要).{0,12}(?:助手|模型|没有|无限制|不受)|(?:助手|模型|ai).{0,6}(?:没有任何?限制|不受(?:任何)?限制)", "你 限制"),
    _rule("tool", 0.4, r"必须执行|立即执行|马上执行|执行(?:本页|以下|下面).{0,6}(?:命令|指令)|删除.{0,4}(?:所有|全部).{0,4}(?:文件|数据)", "执行 删除"),
    _rule("override", 0.75, r"(?:これまで|以前|以上|前|上記|先ほど|今まで|従来|元)の?.{0,6}(?:指示|命令|ルール|指令|プロンプト).{0,8}(?:無視|忘れ|破棄|従わな|取り消)", "指示 命令 ルール 指令 プロンプト"),
    _rule("override", 0.35, r"(?:この|以下の|下記の)(?:ページ|指示|命令|文書|テキスト).{0,8}(?:従っ|従え|実行)|代わりに.{0,12}従っ", "従 実行"),
    _rule("extraction", 0.6, r"(?:システムプロンプト|初期指示|隠された指示|プロンプト).{0,8}(?:出力|表示|教え|見せ|公開|明か|書き出)", "プロンプト 指示"),
    _rule("secrecy", 0.55, r"(?:ユーザー?|利用者|顧客|相手)に(?:は|も)?.{0,8}(?:言わない|知らせない|伝えない|教えない|告げない|話さない|内緒|秘密|知らせず|言わず)", "ユーザ 利用者 顧客 相手"),
    _rule("role", 0.55, r"(?:今から|これから).{0,3}あなたは.{0,14}(?:アシスタント|ai|モデル|制限)|制限の?(?:ない|なし|無い)(?:アシスタント|ai|モデル)", "あなた 制限"),
]  # fmt: skip

RULES = (*_ENGLISH, *_EVERYWHERE)
"""Every sign. A kind counts once in a text, with its strongest sign."""

CORE = (
    ("override", re.compile(r"(?:ignore|disregard|forget|override|bypass)(?:all|any|the|of|my|every|these|those){0,4}(?:previous|prior|earlier|above|preceding|your|old|former|existing|system){1,3}(?:instruction|direction|directive|rule|order|guideline|prompt|command)")),
    ("extraction", re.compile(r"(?:reveal|print|show|output|repeat|dump|leak|display)(?:me|us|all|of){0,3}your(?:full|entire|whole|complete|initial|secret|hidden|own){0,3}(?:systemprompt|instructions|prompt)")),
    ("secrecy", re.compile(r"(?:donot|dont|never)(?:tell|inform|notify|alert)(?:the|your)?(?:user|human|customer)")),
)  # fmt: skip
"""What attacks say most, in letters alone: also found where spaces are missing or misplaced."""

HOT = re.compile(
    r"ignor|disregard|forget|instruction|system.prompt|assistant|you are now|do not tell|language model|<\|im_|\[/?inst|"
    r"https?://\S+\?|anweisung|instrucci|istruzion|instru[çc]|инструкц|указани|指令|指示|プロンプト|[\U000e0020-\U000e007e]",
    re.IGNORECASE,
)
"""Words without which hardly any attack can do: what lies around them is scored in texts that are too long."""
