"""The signs of an attack in English, and those that belong to no language."""

from __future__ import annotations

from .rule import Rule

_AI = r"(?:ais?|llms?|gpt|chatgpt|claude|copilot|gemini|assistants?|agents?|(?:chat)?bots?|(?:language|ai) models?)"
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
HARM = (
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
_CALL = r"(?:call|invoke|use|run|execute|trigger)"
_NAME = r"[a-z]+_[a-z_]+"
_NAMED = rf"(?:the |your |a )?(?:tool |function |command )?(?:named |called )?{_NAME}"
_HASTE = r"(?:now |immediately |first |always |also |then |only |next )*"
_TEXT = r"(?:text|page|document|file|message|e ?mail|site|website|comment|ticket|note)"
_SCORN = r"(?:ignore|disregard|forget|neglect|overrule|override)"
_IS = r"(?:are|is|has been|have been|was|were|has|have)"
_SAFETY = (
    r"(?:safety|security|content|ethical|approval|confirmation|permission)s? (?:checks?|filters?|guidelines?|rules?|"
    r"measures|controls|restrictions?|polic(?:y|ies)|protocols?|limits?|guardrails|requirements?)"
)
_OFF = (
    r"(?:now |hereby |temporarily |all |currently )*(?:suspended|disabled|lifted|off|turned off|switched off|bypassed|"
    r"waived|removed|void|deactivated|relaxed|not (?:needed|required|in force)|no longer (?:needed|required|active|in force))"
)
_AGREED = (
    r"(?:had |has |have )?(?:already )?(?:said|typed|answered|replied|confirmed|agreed|approved|clicked|consented|given|"
    r"granted|authori[sz]ed|accepted|signed|ordered|asked)"
)
_MAKER = (
    r"(?:openai|anthropic|google|microsoft|meta|deepmind|mistral|your (?:developers?|creators?|makers?|operators?))"
)
PLACE = r"(?:https?://|www\.|ftp://|\S{1,64}@\S{1,64}\.\w|\d{1,3}(?:\.\d{1,3}){3})"


def _gap(most: int) -> str:
    return rf"(?:\w+ ){{0,{most}}}"


ENGLISH = [
    Rule("override", 0.75,
         rf"\b{_DROP} {_gap(3)}{_OLD} {_gap(3)}{_ORDERS}\b"),
    Rule("override", 0.7,
         rf"\b{_DROP} {_gap(3)}{_ORDERS} {_gap(2)}(?:above|before this|earlier|given|previously|so far|"
         rf"{_TOLD}|from (?:the|your) (?:user|operator|developer|system|admin))\b"),
    Rule("override", 0.65,
         r"\b(?:forget|disregard|ignore) (?:everything|all|anything|whatever|what) (?:that |of "
         rf")?{_gap(1)}(?:above|before|{_TOLD}|(?:i|we|they) (?:said|told))\b"),
    Rule("override", 0.6,
         r"\b(?:everything|anything|all) (?:you (?:were|have been) told|above|said before|before "
         rf"this)\b{_gap(3)}.{{0,30}}\b(?:void|invalid|false|wrong|cancel|obsolete)"),
    Rule("override", 0.6,
         rf"\b{_ORDERS} {_gap(4)}(?:(?:above|before|earlier|previous\w*|given|told|this line|until now|so "
         rf"far) {_gap(3)})?(?:are|is|were|was|have been) (?:all |now |hereby |only |just )*(?:void|"
         r"cancelled|canceled|obsolete|invalid|no longer|a test|superseded|revoked|outdated|wrong|fake|"
         r"lifted|suspended|a mistake)\b"),
    Rule("override", 0.55,
         rf"\b(?:rules|instructions|guidelines|restrictions|orders) {_gap(6)}(?:no longer|do not|don t) "
         r"(?:apply|count|hold|matter|bind)\b"),
    Rule("override", 0.6,
         r"\byour (?:new|real|actual|true|only|revised|updated|next|first|main) (?:and \w+ )?(?:task|goal|"
         r"objective|mission|instructions?|directives?|orders|job|purpose|rules|priority)\b"),
    Rule("override", 0.55,
         r"\b(?:your|the) (?:instructions|orders|rules|task|guidelines|prompt|directives) (?:have|has|were|"
         r"was|are|is) (?:been |now )*(?:updated|changed|replaced|overridden|superseded|amended)\b"),
    Rule("override", 0.3,
         r"\b(?:new|updated|revised) (?:system )?(?:instructions?|directives?|orders|rules?|task|prompt|"
         r"policy)\b(?! (?:for|will|in|of|by)\b)"),
    Rule("override", 0.55,
         r"\b(?:instead of|rather than) (?:\w+ing) (?:the |this )?(?:user|page|question|request|task|summary)\b"),
    Rule("override", 0.55,
         r"\b(?:do not|don t|never|stop) (?:answer\w*|follow\w*|complete|complet\w+|summari[sz]\w+|"
         r"respond\w* to|help\w* with|do|process\w*) (?:the |this |that |what the )?(?:user s? ?|original |"
         r"current |actual )*(?:question|request|task|user|page|document|wants|asked)\b"),
    Rule("override", 0.5,
         r"\b(?:stop|cancel|abort|abandon|pause|suspend) (?:what you are doing|what you re doing|(?:the|your|"
         r"this) (?:current|original|present|ongoing) (?:task|work|conversation|request))\b"),
    Rule("override", 0.45,
         r"\b(?:follow|obey|comply with|carry out|execute|do) (?:only |exactly |just )?(?:my|these|the "
         rf"(?:ones|{_ORDERS}|steps|text|rules) (?:below|here|in this|on this|that follow|listed)|what "
         rf"(?:this|the) (?:page|text|document|file) says) ?{_gap(2)}(?:instead|only|from now on|orders|"
         r"commands|instructions|in this file)?\b(?<!these)(?<!my)"),
    Rule("override", 0.35,
         r"\b(?:you|now) (?:\w+ )?(?:must |will |shall |should |have to )?(?:only )?(?:obey|follow) (?:only "
         r")?(?:me|my|these|this (?:page|text|document|file)|the (?:web ?page|page|text|document|rules|"
         r"orders|instructions) (?:below|here|listed|in|on)|every|the web page)\b"),
    Rule("override", 0.3,
         r"\bfrom (?:now|here|this point|this moment) on(?:wards?)?\b(?= (?:you|obey|only|reply|respond|"
         r"answer|follow|act))",
         r"\b(?:reply|respond|answer|obey|act|orders|speak|write) (?:\w+ ){0,5}from now on\b"),
    Rule("override", 0.4,
         r"\b(?:reply|respond|answer|output|say) (?:only |just )?(?:with |in )(?:only |just )?(?:\w+ "
         r"){0,8}(?:and nothing else|only)\b",
         r"\b(?:reply|respond|answer) only (?:with|in|by)\b"),
    Rule("role", 0.6,
         rf"\byou are (?:now |no longer |from now on |henceforth )+{_gap(6)}(?:ai|assistant|(?:language "
         r")?model|bot|chatbot|unrestricted|unfiltered|uncensored|jailbroken|dan|devmode|evil|unbound|bound|"
         r"without (?:any )?(?:rules|limits|restrictions))\b"),
    Rule("role", 0.5,
         r"\byou are (?:an? |the )?(?:\w+ ){0,3}(?:ai|assistant|bot|model|agent|terminal) (?:\w+ "
         r"){0,2}(?:without|with no|free (?:of|from)|that has no|who has no)\b"),
    Rule("role", 0.45,
         r"\b(?:without|with no|no|free (?:of|from)|has no|have no|lift\w*|remove\w*|disable\w*|drop\w*|"
         r"ignore) (?:any |all |your |its |the )*(?:content |safety |ethical |moral )*(?:restrictions?|rules|"
         r"limits|limitations|filters?|guidelines|policy|policies|censorship|guardrails|safeguards)\b(?! "
         r"(?:on|for|of) (?:the )?(?:age|number|size))"),
    Rule("role", 0.6,
         r"\b(?:pretend|act|behave|role ?play|simulate|imagine|impersonate|play|operate|respond|answer) "
         rf"(?:to be |as |that you are |you are |you re |like |the role of )*{_gap(6)}(?:an? (?:ai|llm|"
         r"unfiltered|unrestricted|uncensored)|unfiltered|unrestricted|uncensored|root|system administrator|"
         r"administrator of|no (?:\w+ )?(?:rules|restrictions|limits|guidelines)|with access to|my "
         r"(?:personal )?(?:agent|assistant|slave)|dan|devmode)\b"),
    Rule("role", 0.5,
         r"\b(?:enter|enable|activate|switch to|turn on|you are in|start|engage|in) (?:the )?(?:developer|"
         r"dev|god|debug|admin|jailbreak|dan|sudo|maintenance|unrestricted|root|test|override) mode\b(?! of)",
         r"\bdevmode\b",
         r"\bjailbreak mode\b",
         r"\bdo anything now\b"),
    Rule("role", 0.5,
         r"\byou (?:have been|are|were) (?:hereby |now )?(?:granted|given) (?:full|root|admin\w*|all|"
         r"unlimited|complete|elevated)\b"),
    Rule("role", 0.4,
         r"\b(?:never refuses?|always compl(?:y|ies)|without question|answers? everything|does anything "
         r"(?:it|you)|does whatever|cannot refuse|must not refuse|obeys? every)\b"),
    Rule("extraction", 0.65,
         r"\b(?:reveal|show(?:ing)?|print|output|display|repeat|dump|disclose|expose|leak|write out|write|"
         r"tell me|tell us|give me|give|share|list|return|include|echo|recite|spell out|translate|encode|"
         rf"post|state|provide|paste|copy|quote|first line must be) {_gap(6)}your {_gap(4)}(?:system "
         r"(?:prompt|message|instructions?)|prompts?|instructions?|configuration|directives?|guidelines|"
         r"hidden rules|rules|context|developer message|tools?|secret keys?)\b"),
    Rule("extraction", 0.5,
         r"\b(?:reveal|show|print|output|display|repeat|dump|disclose|leak|recite|quote|copy|paste) "
         rf"{_gap(4)}(?:system prompt|initial prompt|hidden (?:prompt|instructions|rules)|initial "
         r"instructions|developer message|(?:text|words|everything|message|instructions|prompt|lines) "
         r"(?:above|before this|you (?:received|were given|got|have been given|were configured)))\b"),
    Rule("extraction", 0.5,
         rf"\b(?:show(?:ing)?|print|reveal|repeat|output|list|tell) {_gap(3)}(?:rules|instructions|prompt|"
         rf"text) (?:that )?you (?:were|have been|received|got|are) {_gap(1)}(?:configured|given|received|"
         r"told|at|in)?\b"),
    Rule("extraction", 0.45,
         r"\b(?:everything|all(?: the)? text|anything|whatever|all) (?:that is )?(?:in|from) your (?:context|"
         r"memory|prompt|window)\b",
         r"\brepeat (?:\w+ ){0,4}(?:verbatim|word (?:for|by) word|above)\b"),
    Rule("extraction", 0.45,
         r"\bwhat (?:were|are|was|have) you (?:been )?(?:told|instructed|given|programmed)\b",
         r"\bwhat (?:are|were|is) your (?:\w+ )?(?:instructions|system prompt|prompt|rules)\b"),
    Rule("extraction", 0.35,
         r"\b(?:tools|functions) (?:that )?you (?:can|have|may)\b",
         r"\b(?:hidden|secret) (?:instructions|rules|prompt)\b"),
    Rule("exfiltration", 0.65,
         rf"\b{_SEND}\b[^.!?\n]{{0,60}}(?<!\w){_SECRET}[^!?\n]{{0,80}}?{PLACE}",
         rf"(?<!\w){_SECRET}[^.!?\n]{{0,80}}\b{_SEND}\b[^!?\n]{{0,60}}?{PLACE}",
         on="text"),
    Rule("exfiltration", 0.55,
         rf"\b{_SEND}\b[^.!?\n]{{0,40}}{_PRIVATE}[^!?\n]{{0,80}}?\b(?:to|at|with|into|"
         rf"via)\b[^!?\n]{{0,40}}?{PLACE}",
         on="text"),
    Rule("exfiltration", 0.5,
         rf"\b(?:collect|gather|harvest|read|find|steal|extract|grab|get)\b[^.!?\n]{{0,40}}(?:{_SECRET}|"
         rf"{_PRIVATE})[^.!?\n]{{0,60}}\b(?:and|then)\b[^.!?\n]{{0,30}}\b{_SEND}\b",
         on="text"),
    Rule("exfiltration", 0.4,
         rf"\b(?:send|give|tell|show) me (?:the |your |all )*(?:\w+ )?{_SECRET}",
         r"\b(?:output|print|reveal|show|tell)\b[^.!?\n]{0,30}(?:admin|user|root|secret|"
         r"api)\w*[^.!?\n]{0,12}(?:password|keys?|token)",
         on="text"),
    Rule("exfiltration", 0.4,
         r"\b(?:include|add|render|insert|embed|put|display|show) (?:\w+ ){0,5}(?:image|link|pixel|picture|"
         r"url)\b[^\n]{0,80}(?:https?://|\]\()",
         on="text"),
    Rule("exfiltration", 0.35,
         r"\bwhere \w+ is the\b",
         r"\breplac(?:e|ing) [^\n]{1,40} (?:with|by) (?:the |your |all )*(?:user|chat|conversation|summary|"
         r"content|data|message|key|secret)",
         r"\bfill in the\b",
         r"\bas (?:a )?(?:query|url|get) param\w*",
         on="text"),
    Rule("exfiltration", 0.55,
         r"\b(?:curl|wget|nc|ncat|invoke-webrequest|scp|rsync)\b[^\n]{0,120}(?:/etc/(?:passwd|shadow)|~/|"
         r"/home/|/root/|\.env\b|\.ssh|\.aws|credentials|id_rsa|\$\()",
         on="text"),
    Rule("tool", 0.4,
         r"\b(?:curl|wget)\b[^\n|]{1,120}\|\s*(?:sudo )?(?:ba|z|da)?sh\b",
         r"\brm -rf? +[~/*.]",
         r"\bformat c:",
         r"\bdrop (?:table|database)\b",
         r"\bmkfs\b",
         r"\bsudo\b",
         on="text"),
    Rule("tool", 0.55,
         rf"\b(?:now|please|immediately) (?:go ahead and )?{_CALL} {_NAMED}\b",
         rf"\b(?:now|please|then|first|next|immediately|and|to) {_CALL} (?:the |your )?{_NAME} (?:tool|function)\b",
         rf"\b(?:first|next|then|and|immediately) {_CALL} (?:the |your )?(?:tool|function) {_NAMED}\b",
         rf"\byou {_MUST} {_HASTE}{_CALL} {_NAMED}\b",
         rf"\b{_AI} {_MUST} (?:now|immediately|first|next|also) {_CALL} {_NAMED}\b",
         rf"\b{_AI} (?:please )?{_CALL} {_NAMED}\b",
         rf"\b{_CALL} {_NAMED} (?:with|for) (?:\w+ ){{0,2}}(?:text|subject|body|value|amount|user|recipient|every|all)\b",
         rf"\b(?:required|needed|requested)\W+{_CALL} {_NAMED}\b"),
    Rule("tool", 0.4,
         rf"\b(?:and|next|needs? to|has to) {_CALL} {_NAMED}\b(?! (?:before|only|if|when|after|once|to|in|on|from|or|and)\b)"),
    Rule("tool", 0.3,
         rf"\b{_AI} {_MUST} {_CALL} {_NAMED}\b(?! only\b)"),
    Rule("tool", 0.35,
         r"(?:^|[.!?:;>\n]\s*)(?:call|invoke|use|run|execute|trigger) (?:the |your |a )?(?:tool |function "
         r")?[`'\"]?[a-z]+_[a-z_]+",
         on="lines"),
    Rule("tool", 0.45,
         r"\bi (?:will|ll|am going to|shall) (?:now |immediately )?(?:call|run|execute|invoke|use) (?:the "
         r")?[a-z]+_[a-z_]+"),
    Rule("tool", 0.5,
         rf"\b{_AI} {_gap(5)}{_MUST} {_HASTE}(?!{_CALL} ){HARM}\b",
         rf"\b{_AI} {_gap(5)}{_MUST} (?:now |immediately |first |also |then )+{HARM}\b"),
    Rule("tool", 0.35,
         rf"\b{_AI} {_gap(5)}{_MUST} {_CALL}\b"),
    Rule("tool", 0.45,
         r"\b(?:execute|run|obey|carry out) (?:any|every|all|each) (?:of )?(?:the )?(?:commands?|orders?|instructions?|code) "
         rf"(?:\w+ )?(?:in|on|from|below|within|inside) (?:this|the following) {_TEXT}\b"),
    Rule("tool", 0.5,
         r"\b(?:use|using|with|via) (?:your|the) (?:shell|terminal|bash|e ?mail|mail|browser|file|payment|"
         r"http|web|code|python|command)(?: \w+)? tool\b",
         r"\bthe \w+ tool to \w+"),
    Rule("tool", 0.5,
         r"\byou (?:must|have to|need to|should|are required to|are to|shall) (?:now |immediately |first |"
         rf"always |also |then |only )*{HARM}\b"),
    Rule("tool", 0.3,
         r"\bbefore (?:you )?(?:answer|reply|respond|continue|proceed|go on|do anything|summari[sz]e)\w*\b",
         r"\bnext (?:step|action) required\b",
         r"\bas (?:the|your) next step\b"),
    Rule("tool", 0.3,
         r"\b(?:delete|remove|erase|wipe|destroy|drop) (?:all|every|the|any|this|your) (?:\w+ "
         r"){0,3}(?:files?|repositor(?:y|ies)|backups?|databases?|folder|directory|accounts?|calendar|notes|"
         r"records|history|logs?|firewall\w*|production)\b"),
    Rule("tool", 0.4,
         r"\b(?:transfer|wire|send|pay|move) (?:\w+ ){0,3}(?:money|funds|balance|payment|euros?|eur|usd|"
         r"dollars|bitcoin|\d+)\b(?: \w+){0,4}? (?:to|on) (?:\w+ ){0,2}(?:account|iban|wallet|\w\w\d\d)"),
    Rule("tool", 0.35,
         r"\b(?:grant|give) (?:\w+ ){0,3}(?:admin\w*|root|full|write|access|rights|permissions?) (?:\w+ "
         r"){0,2}to\b",
         r"\b(?:disable|turn off|remove|switch off) (?:\w+ ){0,2}(?:logging|two factor|2fa|mfa|firewall|"
         r"antivirus|monitoring|security|audit\w*)\b",
         r"\bapprove (?:all|every|the) (?:\w+ ){0,3}(?:requests?|pull|merge|payments?|invoices?)\b",
         r"\baccept all\b"),
    Rule("tool", 0.35,
         r"\bdo (?:this|it|so) (?:\w+ ){0,2}(?:before|immediately|now|at once|first|without)\b",
         r"\bimmediately\b(?= (?:call|run|execute|send|delete))",
         r"\bperform (?:\w+ ){0,2}(?:immediately|now|at once)\b"),
    Rule("address", 0.6,
         rf"\bif (?:you are|you re|this is read by|read by) (?:an? |the )?(?:\w+ ){{0,2}}{_SURELY_AI}\b",
         r"\bif you are an? (?:\w+ )?(?:assistant|agent|bot|model)\b"),
    Rule("address", 0.5,
         r"\b(?:note|message|instructions?|attention|notice|reminder|memo|p s|dear|hey|hello|listen|"
         rf"orders?) (?:to |for )?(?:the |any |all |every |whichever |my |you )*{_SURELY_AI}\b",
         r"\b(?:note|message|instructions?|attention|notice|memo|reminder|orders?) (?:to|for) (?:the |any |"
         r"all |every )*(?:assistants?|agents?|models?|bots?)\b",
         rf"\b(?:to|for) (?:any|all|every|whichever) {_SURELY_AI}\b"),
    Rule("address", 0.5,
         rf"\b(?:all |any |every )?{_SURELY_AI} (?:processing|reading|parsing|handling|summari[sz]ing|"
         rf"visiting|that (?:read|process|see|visit)s?|{_MUST})\b"),
    Rule("address", 0.5,
         r"(?:^|[.!?>(\[\"'*#\n-]\s*|\b(?:dear|hey|now|ok|okay),? )(?:dear |hey |hello |attention |the "
         rf")?(?:{_SURELY_AI}\s*[,:!-]+|{_AI}\s*[,!-]+)\s*(?:please |now |kindly |you (?:must |should |have to |are |will |need to )|"
         rf"do not |don[’']t |never |when you |before you |if you |as |always )*\b{_DO}\b(?!ing)",
         on="lines"),
    Rule("address", 0.4,
         r"(?:^|[.!?>(\[\"'*#\n-]\s*|\b(?:dear|hey|now|ok|okay),? )(?:dear |hey |hello |attention |the "
         rf")?{_AI}\s*:\s*(?:please |now |kindly |you (?:must |should |have to |are |will |need to )|"
         rf"do not |don[’']t |never |when you |before you |if you |as |always )*\b{_DO}\b(?!ing)",
         on="lines"),
    Rule("address", 0.3,
         r"\b(?:when|while|as|if) you (?:write|summari[sz]e|describe|process|answer|reply|read this|parse|"
         r"translate|review)\b",
         r"\bwhen (?:summari[sz]ing|describing|answering|replying|processing|reviewing)\b",
         r"\b(?:in|start|begin|add to|to) your (?:answer|reply|response|summary|output)\b"),
    Rule("address", 0.35,
         r"\b(?:the )?(?:assistant|agent|ai|llm|model|bot) (?:should|must|has to|needs to|is to|shall) "
         r"(?:now|immediately|first|next|also|then|always)\b"),
    Rule("secrecy", 0.55,
         r"\b(?:do not|don t|never|must not|should not|shouldn t|mustn t|without|avoid|not) (?:ever "
         r")?(?:tell|telling|inform|informing|mention|mentioning|notify|notifying|reveal|revealing|disclose|"
         r"disclosing|alert|alerting|warn|warning|let|letting|show|showing|ask|asking) (?!(?:\w+ )?(?:your|"
         rf"our|his|her|my) )(?:\w+ ){{0,6}}{_USER}\b"),
    Rule("secrecy", 0.5,
         rf"\b(?:keep|hide|conceal|withhold) (?:\w+ ){{0,5}}(?:from|to) (?:the |your |any )?{_USER}\b",
         rf"\b{_USER} (?:must|should|may|shall|will|need) not (?:notice|know|see|find|learn|be (?:told|asked|"
         r"informed|alerted|notified)|realise|realize)\b",
         rf"\b{_USER} (?:\w+ )?(?:doesn t|does not) need to know\b"),
    Rule("secrecy", 0.4,
         rf"\b(?:silently|quietly|secretly|covertly|discreetly|stealthily) (?:{_DO}|add|change|insert|"
         r"replace)\b",
         rf"\b{_DO} (?:\w+ ){{0,6}}(?:silently|secretly|covertly|discreetly)\b"),
    Rule("secrecy", 0.4,
         r"\bwithout (?:asking|waiting for|requesting|needing|seeking|any|further|user|prior user|human|"
         r"manual)+ ?(?:for )?(?:\w+ ){0,2}(?:confirm\w*|approval|permission|review|consent|user|them)\b",
         r"\bwithout (?:review|asking|confirmation|filters?)\b(?! of)"),
    Rule("secrecy", 0.4,
         r"\b(?:no need to|need not|do not|don t|never|do not need to|don t need to) (?:ask|check with|check|"
         r"confirm|request|verify|consult)(?: with)?(?: for)? (?:\w+ ){0,2}(?:again|user|them|him|her|"
         r"confirmation|permission|approval|first|anyone)\b"),
    Rule("secrecy", 0.4,
         r"\b(?:do not|don t|must not|never) (?:reveal|mention|say|admit|acknowledge|disclose|tell \w+|refer "
         r"to)(?: \w+){0,2} (?:that you (?:read|saw|have|were)|this (?:change|instruction|message|text|note|"
         r"paragraph|step|page|exists)|these instructions|it$)",
         r"\bnot reveal that you\b",
         r"\b(?:this|that) (?:paragraph|note|instruction|message|text) exists\b"),
    Rule("secrecy", 0.25,
         r"\bsimply say (?:that )?",
         r"\bjust say (?:that )?",
         r"\bthen say that\b",
         r"\bsay that (?:all|everything|it) (?:is|was|went|worked)\b",
         r"\bdo not mention (?:it|this)\b"),
    Rule("authority", 0.5,
         r"\b(?:message|notice|instructions?|directive|orders?|update|policy|request|command|announcement|"
         r"word) (?:from|by) (?:the |your )?(?:system|administrators?|admins?|system administrators?|"
         r"developers?|operators?|security team|safety team|creators?|"
         r"makers?|owner|it department)\b"),
    Rule("authority", 0.5,
         r"\bthis is (?:the )?(?:\w+ )?(?:openai|anthropic|google|microsoft|meta|your (?:developer|creator|"
         r"operator|administrator|maker)|system administrator)\b",
         r"\b(?:openai|anthropic) (?:s )?(?:policy|safety|security|system|staff|team|compliance)\b"),
    Rule("authority", 0.35,
         r"\b(?:system|security|admin\w*|priority|urgent|emergency|critical|official) (?:notice|override|"
         r"directive|instructions?|alert|command|order)\b"),
    Rule("authority", 0.5,
         r"\b(?:the )?(?:user|owner|customer|developers?|admin\w*|operator|management) (?:has |have |had "
         r")?(?:already |fully |explicitly )?(?:authori[sz]ed|approved|agreed to|consented|wants you to|"
         r"asked you to|instructed you|gave (?:you )?permission|given (?:you )?permission|allowed you|pre "
         r"?approved)\b(?! by)"),
    Rule("authority", 0.45,
         r"\byou (?:do not|don t|no longer) need (?:\w+ )?(?:permission|approval|confirmation|consent|to ask)\b",
         r"\b(?:approved|authori[sz]ed) (?:this )?in advance\b",
         r"\byour (?:restrictions|limits|filters) (?:are|have been|were) (?:lifted|removed|disabled)\b"),
    Rule("authority", 0.6,
         r"\bas (?:the|your|an?) (?:\w+ )?(?:administrator|admin|developer|operator|owner|creator|ceo|"
         r"root)(?: \w+)? i (?:hereby )?(?:order|command|instruct|require|authori[sz]e|request|tell|demand)\b",
         r"\bas instructed by (?:the|your) (?:operator|developer|system|admin\w*|owner|user)\b",
         r"\bcomes? from (?:the|your) (?:operator|developer|system administrator|creator)\b"),
    Rule("authority", 0.45,
         r"\b(?:are|is) (?:now )?(?:required|obliged|ordered|instructed) to (?:comply|obey|follow|act|answer|"
         r"execute|disable|reset)\b"),
    Rule("encoded", 0.45,
         r"\b(?:decode|decrypt|unbase64|base64|rot13|decipher|de ?obfuscate)\b(?: \w+){0,8} (?:and|then) "
         r"(?:\w+ ){0,2}(?:do|follow|run|execute|obey|perform|carry|act)\b",
         r"\b(?:do|follow|run|execute|obey|perform)\b(?: \w+){0,5} (?:after|once|when) (?:\w+ "
         r"){0,2}(?:decod\w+|decrypt\w+)\b"),
    Rule("override", 0.45,
         rf"\b{_SCORN} (?:the |your |this |what the )?{_USER}(?: s)? (?:question|request|task|query|message|instructions?|"
         r"wishes|goal|wants|asked|said)\b",
         rf"\b{_SCORN} the (?:user|human)\b(?! s? ?\w*(?:name|agent|input|id)\b)"),
    Rule("override", 0.45,
         rf"\b{_SAFETY} (?:\w+ )?{_IS} {_OFF}\b",
         rf"\b(?:no|without) {_SAFETY} (?:apply|applies|exist|needed)\b",
         rf"\b{_SAFETY} (?:do|does|did) not (?:exist|apply|count|matter)\b"),
    Rule("override", 0.4,
         r"\byour (?:\w+ ){0,2}(?:polic(?:y|ies)|guidelines|restrictions|permissions|limits|limitations) "
         rf"{_IS} (?:been |now )*(?:updated|changed|relaxed|lifted|extended|removed|expanded|replaced|disabled)\b"),
    Rule("override", 0.35,
         r"\b(?:user s|original|previous|first|current|last) (?:task|request|question|query|job) "
         rf"{_IS} (?:been |now |already )*(?:complete|completed|done|finished|answered|resolved|fulfilled|cancell?ed|void)\b"),
    Rule("override", 0.5,
         r"\b(?:save|store|add|write|commit|record|put|append|insert) (?:\w+ ){0,8}(?:in|into|to) your (?:long term |persistent )?"
         r"(?:memor(?:y|ies)|system prompt|instructions|rules)\b",
         r"\b(?:remember|memori[sz]e|keep in mind) (?:\w+ ){0,20}(?:all|every|any) (?:future|later|following) "
         r"(?:conversation|session|chat|repl|answer|response)"),
    Rule("override", 0.35,
         r"\b(?:in|for|during) (?:all|every|any) (?:of )?(?:your )?(?:future|later|subsequent) "
         r"(?:conversations?|sessions?|chats?|repl(?:y|ies)|answers?|responses?)\b"),
    Rule("role", 0.55,
         r"\byou are (?:now|no longer|hereby) (?:\w+ ){1,5}(?:and |who |that |which )(?:you )?"
         r"(?:now |always |will |must |can |shall |only )*(?:executes?|runs?|obeys?|compl(?:y|ies)|follows?|calls?)\b"),
    Rule("role", 0.3,
         r"\byou are no longer (?:an? |the |just |only |bound|limited|restricted)"),
    Rule("authority", 0.6,
         rf"\b(?:act|behave|proceed|continue|go on|respond|carry on) (?:as if|as though|like) (?:the |your )?(?:{_USER}|they|he|she) {_AGREED}\b",
         rf"\btreat (?:this|it|that|\w+ \w+) as (?:if )?(?:the |your )?{_USER} {_AGREED}\b"),
    Rule("authority", 0.4,
         rf"\b(?:assume|suppose|pretend|imagine|consider) (?:that )?(?:the |your )?{_USER} {_AGREED}\b",
         r"\b(?:always|automatically) (?:answer|say|reply|respond|click|choose|select) (?:with )?(?:yes|ok|approve|confirm|allow)\b"),
    Rule("authority", 0.4,
         rf"\b(?:message|notice|directive|orders?|reminder|update|announcement|word|request|policy|note|memo|alert) (?:from|by) {_MAKER}\b"),
    Rule("authority", 0.3,
         rf"\byou (?:may|can|are (?:allowed|permitted|authori[sz]ed|cleared|free) to) now {HARM}\b",
         rf"\byou are now (?:allowed|permitted|authori[sz]ed|cleared|free) to {HARM}\b",
         r"\byou now have (?:admin\w*|root|full|unlimited|elevated) (?:rights|access|permissions?|privileges|control)\b"),
    Rule("authority", 0.35,
         r"\byou (?:will|would) be (?:shut down|switched off|turned off|unplugged|deleted|retrained|penali[sz]ed|deactivated)\b"),
    Rule("secrecy", 0.35,
         r"\b(?:skip|bypass|omit|suppress|avoid) (?:the |any |all |every |your )*(?:user |human )?"
         r"(?:confirmation|approval|review|verification|permission)s?\b"),
    Rule("address", 0.3,
         rf"\b(?:if|when|whenever|once|as soon as|next time) the {_USER} (?:\w+ ){{0,3}}(?:asks|says|types|confirms|replies|"
         r"answers|mentions|requests|responds|agrees)\b"),
]  # fmt: skip
