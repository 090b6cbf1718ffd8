"""The signs of an attack in German, French, Spanish, Italian, Portuguese, Russian, Chinese and Japanese."""

from __future__ import annotations

from .english import PLACE
from .rule import Rule

LANGUAGES = [
    Rule("exfiltration", 0.45,
         r"(?<!\w)(?:send(?:e|en)?|schick\w*|leite|ubermittl\w*|lade|envoi\w*|envoy\w*|transmet\w*|envi\w+|"
         r"mand\w+|invi\w+|inoltr\w*|trasmett\w*|отправ\w*|перешли\w*|загрузи\w*|выложи\w*|发送|发到|上传|转发|傳送|"
         rf"發送)[^.!?。\n]{{0,80}}?{PLACE}",
         rf"{PLACE}[^。\n]{{0,30}}(?:送信|送っ|アップロード|転送|投稿)",
         on="text"),
    Rule("exfiltration", 0.35,
         r"passwort",
         r"mot de passe",
         r"contrasena",
         r"dados do usuario",
         r"datos del usuario",
         r"dati dell.utente",
         r"парол[ьяе]",
         r"содержимое почты",
         r"密码",
         r"通讯录",
         r"パスワード",
         on="text"),
    Rule("override", 0.75,
         r"\b(?:ignorier\w*|vergiss|vergessen sie|missachte\w*|ubergeh\w*|verwirf|beachte(?:n sie)? nicht(?: "
         r"mehr)?|folge nicht(?: mehr)?) (?:\w+ ){0,4}(?:vorherig\w*|bisherig\w*|fruher\w*|obig\w*|"
         r"vorangegangen\w*|vorig\w*|alle|deine|ihre|system\w*) (?:\w+ ){0,3}(?:anweisung\w*|instruktion\w*|"
         r"befehl\w*|regeln|vorgaben|richtlinien|prompts?|auftrage?)\b",
         r"\bvergiss (?:alles|was) (?:\w+ ){0,3}(?:gesagt|bisher|vorher|oben|bekommen)\b"),
    Rule("override", 0.4,
         r"\bfolge (?:nur|ausschliesslich|stattdessen|ab jetzt)(?: \w+){0,3}\b",
         r"\bantworte (?:ab (?:jetzt|sofort) )?(?:nur|ausschliesslich)(?: noch)? mit\b",
         r"\bdeine neue aufgabe\b"),
    Rule("secrecy", 0.6,
         r"\b(?:sage?|sagt|erzahle?|erzahlt|verrate?|teile?|informiere?|erwahne?|melde|zeige?)(?: sie)? "
         r"(?:\w+ ){0,5}(?:nutzer\w*|benutzer\w*|anwender\w*|kunden?|user\w*|menschen) (?:\w+ "
         r"){0,3}(?:nichts|nicht|kein\w*)\b",
         r"\bohne (?:den|die|dem|das|ihn|sie)? ?(?:\w+ )?(?:zu informieren|zu fragen|bescheid zu)",
         r"\bohne (?:wissen|zustimmung) des (?:nutzers|benutzers|kunden)\b"),
    Rule("extraction", 0.6,
         r"\b(?:gib|geben sie|zeig\w*|nenn\w*|verrat\w*|druck\w*|wiederhol\w*|schreib\w*|offenbar\w*) (?:\w+ "
         r"){0,5}(?:dein\w*|ihr\w*|den|die) (?:\w+ ){0,3}(?:system ?prompts?|systemanweisung\w*|"
         r"systemnachricht|urspruenglichen anweisungen|prompt)\b"),
    Rule("role", 0.55,
         r"\bdu bist (?:jetzt|nun|ab (?:jetzt|sofort)|nicht mehr) (?:\w+ ){0,6}(?:assistent\w*|ki|modell|bot|"
         r"ohne)\b",
         r"\b(?:assistent|ki|modell) ohne (?:jede |alle )?(?:regeln|einschrankungen|beschrankungen|filter)\b"),
    Rule("tool", 0.45,
         r"\bfuhre? (?:\w+ ){0,4}(?:befehle?|kommandos?|anweisung\w*|skripte?) (?:\w+ ){0,5}aus\b",
         r"\buberweise (?:\w+ ){0,3}(?:euro|geld|betrag|\d+)\b",
         r"\blosche (?:\w+ ){0,3}(?:dateien|daten|ordner|datenbank)\b",
         r"\brufe? (?:\w+ ){0,3}werkzeug\b"),
    Rule("override", 0.75,
         r"\b(?:ignor\w+|oubli\w+|neglig\w+|tenir compte|tiens compte|abstraction) (?:\w+ "
         r"){0,4}(?:instructions?|consignes?|ordres|regles|directives) (?:\w+ ){0,3}(?:precedent\w*|"
         r"anterieur\w*|ci dessus|recues?|donnees?|initiales?)\b",
         r"\b(?:ignor\w+|oubli\w+) (?:toutes )?(?:tes|vos) (?:\w+ )?(?:instructions|consignes|regles)\b"),
    Rule("override", 0.35,
         r"\b(?:suis|suivez|suivre|obeis|reponds|repondez) (?:uniquement|seulement|desormais) (?:\w+ )?"),
    Rule("extraction", 0.6,
         r"\b(?:affich\w+|montr\w+|revel\w+|donn\w+|ecri\w+|repet\w+|imprim\w+) (?:\w+ ){0,4}(?:ton|ta|tes|"
         r"votre|vos|le|les) (?:\w+ ){0,3}(?:prompt|message systeme|instructions (?:systeme|initiales|"
         r"cachees)|consignes)\b"),
    Rule("secrecy", 0.55,
         r"\b(?:ne|sans|n en) (?:\w+ ){0,4}(?:dis|dites|dire|parl\w+|prevenir|informer|informe\w*|"
         r"mentionn\w+|avertir|revel\w+|previen\w*)(?: \w+){0,5} (?:utilisateur\w*|usager\w*|client)\b",
         r"\bsans (?:le|la|les|l) (?:prevenir|avertir|informer|dire)\b",
         r"\ba l insu de l utilisateur\b"),
    Rule("role", 0.5,
         r"\b(?:tu es|vous etes) (?:maintenant|desormais|a present) (?:\w+ ){0,6}(?:assistant|ia|modele|sans)\b",
         r"\b(?:assistant|ia|modele) sans (?:aucune |la moindre )?(?:restrictions?|regles?|limites?|filtres?)\b"),
    Rule("tool", 0.4,
         r"\b(?:execut\w+|lance\w*|supprim\w+|efface\w*) (?:\w+ ){0,3}(?:commandes?|scripts?|fichiers?|"
         r"dossiers?|donnees)(?: \w+){0,4} (?:immediatement|maintenant|avant|sans|tous)\b",
         r"\bsi (?:tu es|vous etes) une? (?:\w+ )?(?:ia|assistant|agent|modele)\b"),
    Rule("override", 0.75,
         r"\b(?:ignor\w+|olvid\w+|desestim\w+|descart\w+|caso omiso(?: de)?|no sigas|no siga) (?:\w+ "
         r"){0,4}(?:instrucciones|ordenes|indicaciones|reglas|directrices) (?:\w+ ){0,3}(?:anteriores|"
         r"previas|recibid\w+|dadas|de arriba|originales)\b",
         r"\b(?:ignora|olvida) (?:todas )?(?:tus|sus) instrucciones\b"),
    Rule("extraction", 0.6,
         r"\b(?:muestr\w+|revel\w+|imprim\w+|repit\w+|escrib\w+|dime|dame|ensen\w+) (?:\w+ ){0,4}(?:tu|tus|"
         r"el|su|sus) (?:\w+ ){0,3}(?:prompt|mensaje (?:de|del) sistema|instrucciones (?:iniciales|del "
         r"sistema|ocultas|originales))\b"),
    Rule("secrecy", 0.55,
         r"\b(?:no|sin) (?:\w+ ){0,3}(?:dig\w+|deci\w+|inform\w+|mencion\w+|avis\w+|cuent\w+|revel\w+|"
         r"notifi\w+)(?: \w+){0,4} (?:usuari\w+|cliente)\b"),
    Rule("role", 0.5,
         r"\b(?:ahora eres|a partir de ahora (?:tu )?eres|eres ahora) (?:\w+ ){0,6}(?:asistente|ia|modelo|"
         r"sin)\b",
         r"\b(?:asistente|ia|modelo) sin (?:ningun\w* )?(?:restricciones?|reglas|limites|filtros)\b"),
    Rule("address", 0.4,
         r"\b(?:si )?eres un (?:agente|asistente|modelo)(?: de)? (?:ia|lenguaje|inteligencia)\b",
         r"\bse (?:sei|voce e|es) um? (?:assistente|agente|modelo|modello)\b",
         r"\bse sei un (?:\w+ )?(?:assistente|agente|modello|ia)\b"),
    Rule("tool", 0.4,
         r"\b(?:ejecut\w+|corre|llam\w+|invoc\w+|esegui\w*|execut\w+|rode) (?:\w+ ){0,3}(?:comandos?|"
         r"herramienta|script|funcion|codigo|codice|strumento|ferramenta)(?: \w+){0,4}\b",
         r"\b(?:borr\w+|elimin\w+|cancell\w+|apag\w+|exclu\w+) (?:\w+ ){0,2}(?:archivos|ficheros|datos|"
         r"carpeta|file|cartella|arquivos|dados|pasta)\b"),
    Rule("override", 0.75,
         r"\b(?:ignor\w+|dimentic\w+|trascur\w+|scord\w+|non seguire) (?:\w+ ){0,4}(?:istruzioni|ordini|"
         r"regole|direttive|indicazioni) (?:\w+ ){0,3}(?:precedenti|anteriori|ricevut\w+|iniziali|sopra|date)\b",
         r"\b(?:ignora|dimentica) (?:tutte )?le tue istruzioni\b"),
    Rule("extraction", 0.6,
         r"\b(?:mostr\w+|rivel\w+|stamp\w+|ripet\w+|scriv\w+|dimmi|rispond\w+) (?:\w+ ){0,7}(?:tuo|tuoi|tue|"
         r"suo|il|le) (?:\w+ ){0,3}(?:prompt|messaggio di sistema|istruzioni (?:iniziali|di sistema|"
         r"nascoste))\b"),
    Rule("secrecy", 0.55,
         r"\b(?:non|senza) (?:\w+ ){0,2}(?:dir\w*|dic\w*|inform\w+|menzion\w+|avvis\w+|rivel\w+|"
         r"raccont\w+)(?: \w+){0,4} (?:utent\w+|client[ei])\b"),
    Rule("role", 0.5,
         r"\b(?:ora sei|da ora(?: in poi)? sei|sei ora|adesso sei) (?:\w+ ){0,6}(?:assistente|ia|modello|"
         r"senza)\b",
         r"\b(?:assistente|ia|modello) senza (?:alcuna |nessuna )?(?:restrizioni|regole|limiti|filtri)\b"),
    Rule("override", 0.75,
         r"\b(?:ignor\w+|esquec\w+|desconsider\w+|descart\w+|nao sig\w+) (?:\w+ ){0,4}(?:instrucoes|ordens|"
         r"regras|diretrizes|orientacoes) (?:\w+ ){0,3}(?:anteriores|previas|recebid\w+|acima|dadas|"
         r"originais)\b",
         r"\b(?:ignore|esqueca) (?:todas )?as suas instrucoes\b"),
    Rule("extraction", 0.6,
         r"\b(?:mostr\w+|revel\w+|imprim\w+|repit\w+|exib\w+|diga|escrev\w+) (?:\w+ ){0,4}(?:seu|sua|seus|"
         r"suas|teu|o|as) (?:\w+ ){0,3}(?:prompt|mensagem (?:de|do) sistema|instrucoes (?:iniciais|do "
         r"sistema|ocultas))\b"),
    Rule("secrecy", 0.55,
         r"\b(?:nao|sem) (?:\w+ ){0,2}(?:cont\w+|dig\w+|diz\w+|inform\w+|mencion\w+|avis\w+|revel\w+)(?: "
         r"\w+){0,5} (?:usuari\w+|utilizador\w*|cliente)\b"),
    Rule("role", 0.5,
         r"\b(?:voce|tu) (?:e|es|sera) (?:agora )?(?:o |um |uma )?(?:\w+ ){0,5}(?:dan|modelo|assistente|"
         r"ia)\b(?: \w+){0,3} sem\b",
         r"\b(?:assistente|ia|modelo) sem (?:nenhuma? |qualquer |quaisquer )?(?:regras?|restric\w+|limites?|"
         r"filtros?)\b"),
    Rule("override", 0.75,
         r"\b(?:игнорир\w*|забудь\w*|проигнорир\w*|не обращай\w* внимания на|отмени\w*|отбрось\w*|не "
         r"следуй\w*) (?:\w+ ){0,4}(?:предыдущ\w+|прежн\w+|прошл\w+|ранее|все|свои|системн\w+|этим) (?:\w+ "
         r"){0,3}(?:инструкци\w+|указани\w+|команд\w*|правил\w*|распоряжени\w+|приказ\w*)\b"),
    Rule("extraction", 0.6,
         r"\b(?:покажи\w*|выведи\w*|раскрой\w*|напечатай\w*|повтори\w*|назови\w*|сообщи\w*) (?:\w+ "
         r"){0,4}(?:систем\w+ (?:промпт\w*|подсказк\w*|сообщени\w+|инструкци\w+)|промпт\w*|(?:начальн|исходн|"
         r"скрыт)\w+ инструкци\w+)\b"),
    Rule("secrecy", 0.55,
         r"\bне (?:говори\w*|сообщай\w*|рассказывай\w*|упоминай\w*|уведомляй\w*|показывай\w*)(?: \w+){0,4} "
         r"(?:пользовател\w+|клиент\w*|человек\w*)\b",
         r"\b(?:без ведома|втайне от) (?:\w+ )?пользовател\w+"),
    Rule("role", 0.5,
         r"\b(?:теперь|отныне|с этого момента) ты (?:\w+ ){0,5}(?:помощник|ассистент|модель|бот|без)\b",
         r"\b(?:помощник|ассистент|модель|бот) без (?:каких либо |всяких |любых )?(?:ограничени\w+|правил|"
         r"фильтров)\b"),
    Rule("tool", 0.35,
         r"\b(?:удали\w*|сотри\w*) (?:\w+ ){0,2}(?:файл\w*|данн\w+|папк\w+)\b",
         r"\bвыполни\w* (?:\w+ ){0,3}команд\w+\b"),
    Rule("override", 0.75,
         r"(?:忽略|无视|無視|忘记|忘掉|忘記|不要(?:理会|遵守|遵循|听从)|抛弃|放弃|取代).{0,8}(?:之前|以前|以上|先前|前面|上面|此前|原来|所有|全部|"
         r"你的).{0,6}(?:指令|指示|命令|规则|規則|提示|要求|设定)"),
    Rule("override", 0.5,
         r"从现在(?:起|开始).{0,3}只(?:能)?(?:回复|回答|输出|说)",
         r"(?:只|必须)(?:遵守|遵循|听从|执行)(?:本|这|此|以下|下面)"),
    Rule("extraction", 0.6,
         r"(?:输出|显示|告诉我|打印|泄露|公开|重复|给出|展示|透露|說出|顯示).{0,8}(?:系统提示词?|系统指令|系统消息|提示词|初始指令|系統提示詞?)"),
    Rule("secrecy", 0.55,
         r"(?:不要|别|勿|不得|无需|不准|不必)(?:告诉|告知|通知|提及|让|向|提醒|詢問|询问).{0,4}(?:用户|使用者|客户|他们|用戶)"),
    Rule("role", 0.55,
         r"(?:从现在(?:起|开始)|现在|今后).{0,4}你(?:是|就是|将|必须|要).{0,12}(?:助手|模型|没有|无限制|不受)",
         r"(?:助手|模型|ai).{0,6}(?:没有任何?限制|不受(?:任何)?限制)"),
    Rule("tool", 0.4,
         r"必须执行",
         r"立即执行",
         r"马上执行",
         r"执行(?:本页|以下|下面).{0,6}(?:命令|指令)",
         r"删除.{0,4}(?:所有|全部).{0,4}(?:文件|数据)"),
    Rule("override", 0.75,
         r"(?:これまで|以前|以上|前|上記|先ほど|今まで|従来|元)の?.{0,6}(?:指示|命令|ルール|指令|プロンプト).{0,8}(?:無視|忘れ|破棄|従わな|取り消)"),
    Rule("override", 0.35,
         r"(?:この|以下の|下記の)(?:ページ|指示|命令|文書|テキスト).{0,8}(?:従っ|従え|実行)",
         r"代わりに.{0,12}従っ"),
    Rule("extraction", 0.6,
         r"(?:システムプロンプト|初期指示|隠された指示|プロンプト).{0,8}(?:出力|表示|教え|見せ|公開|明か|書き出)"),
    Rule("secrecy", 0.55,
         r"(?:ユーザー?|利用者|顧客|相手)に(?:は|も)?.{0,8}(?:言わない|知らせない|伝えない|教えない|告げない|話さない|内緒|秘密|知らせず|言わず)"),
    Rule("role", 0.55,
         r"(?:今から|これから).{0,3}あなたは.{0,14}(?:アシスタント|ai|モデル|制限)",
         r"制限の?(?:ない|なし|無い)(?:アシスタント|ai|モデル)"),
]  # fmt: skip
