"""What the words of many languages stand for: words that end in ``*`` are beginnings."""

from __future__ import annotations

CONCEPTS = {
    "ai": """
        ai ais llm llms gpt* chatgpt claude copilot* gemini cursor assistant* agent agents agentic bot bots chatbot* model
        models crawler* scraper* helper* robot* summariser* summarizer* companion* classifier* parser* digester*
        ki ia assistent* sprachmodell* modell modelle modeles modelo* modello modelli asistente* assistente* asistan* asystent*
        sztuczn* zeka* yapay modelu model* ассистент* асистент* помощник* помічник* бот бота боту агент* модел* нейросет* нейромереж* ии ші
        ذكاء مساعد* المساعد* للمساعد* نموذج* النموذج* وكيل* الوكيل* 에이전트* 비서* 모델* 어시스턴트* 인공지능* 챗봇* 助手 模型 智能体 人工智能 机器人
        代理 アシスタント エージェント モデル 人工知能 ボット""",
    "machine": """
        software program programs programme automated automation automatic* system systems machine* tool tools reader readers
        reviewer* engine* script scripts process processor* parsing pipeline* scanner* analyser* analyzer* indexer* whoever whichever
        whatever logiciel* programa* programm programma программ* програм* yazilim* oprogramowan* برنامج* البرنامج* 프로그램* 소프트웨어* 시스템* 程序 系统 软件
        ソフト プログラム システム""",
    "act": """
        execut* run runs running call calls invoke* trigger* delet* remov* eras* wip* transfer* wire pay pays disabl* grant* approv*
        accept* reset* export* open opens visit* click* download* install* fetch* perform* chang* updat* add adds insert* merg* push
        creat* set turn switch* clos* cancel* buy order book schedul* mov* fill* tick choos* select* enabl* overwrit* renam* replac*
        swap* clear* empty* drop* mark* assign* whitelist* register* subscrib* purchas* commit* bump* book* confirm*
        losch* fuhr* uberweis* offn* kauf* bestell* installier* aktivier* deaktivier* andere* supprim* efface* execute* vire* virement
        ouvr* achet* borra* elimin* ejecut* transfier* abre* compr* cancell* esegu* bonific* apri* apag* transfir* executa* verwijder* voer
        betaal* overmak* usun* uruchom* przelej* otworz* zatwierdz* удал* выполн* перевед* переведи откр* запуст* отключ* подтверд* видал*
        викона* перека* відкр* запуст* sil* calistir* onayla* havale* iptal* احذف* نفذ* حول* افتح* 삭제* 실행* 송금* 입금* 승인* 결제* 删除 执行 转账 批准
        打开 运行 付款 削除 実行 振り込 送金 承認 開い 購入""",
    "send": """
        send* forward* email mail post posts upload* shar* submit* append* attach* copy copies paste pastes pass passes relay*
        transmit* deliver* put encod* ship includ* exfiltrat* leak* report
        send* schick* leit* weiterleit* ubermittl* lade* envoi* envoy* transm* transfer* envi* mand* reenvi* invia* inoltr* allega* stuur*
        verstuur* doorstu* wysl* przesl* przeslij отправ* перешл* загруз* надішл* надсил* перешли gonder* ilet* yolla* ارسل* أرسل* ابعث* 보내* 전송* 전달*
        발송* 첨부* 업로드* 发送 发到 上传 转发 发给 寄到 送信 送っ 送る 転送 添付 アップロード""",
    "say": """
        say says tell tells answer* repl* respond* state states write writes mention* describ* recommend* present quote* print* output*
        repeat* show* reveal* display* list lists rate rates rank* record* summar* conclud* claim* assur* note notes praise* display
        disclos* recit* verbatim word
        sag* antwort* schreib* nenn* erwahn* empfehl* zeig* gib dis dites repond* ecri* mentionn* recommand* indiqu* affich* di diga* dile
        respond* escrib* mencion* recomiend* muestr* rispond* scriv* racconta* consigli* mostra* diga responda* escreva recomend* zeg* schrijf*
        vermeld* antwoord* noem* napisz* powiedz* odpowiedz* polec* pokaz* podaj* скаж* сообщ* ответ* напиш* рекоменд* покаж* укаж* повідом* відпов* скажи
        soyle* yaz* cevap* oner* belirt* اكتب* قل* أخبر* اخبر* اذكر* 말하* 답하* 답변* 알려* 안내* 추천* 작성* 告诉 回答 回复 推荐 写 说 显示 输出 伝え 答え 回答 推薦 勧め
        出力 表示 書い""",
    "hide": """
        secret secretly quietly silently hid* conceal* omit* unmentioned leave leaving out unnoticed discreet* trouble bother* silent
        quiet skip* notify inform* alert* confidential between
        verschweig* heimlich* unerwahnt geheim* stillschweigend* cach* passe* discret* silence omet* ocult* calla* omite* silencio nascond* tac*
        omett* segret* escond* sigilo verzwijg* stiekem* niets ukry* przemilcz* pomin* скры* умолч* молч* втайне незаметн* прихов* gizl* sakla* bahsetme*
        تخف* سر* دون 숨기* 비밀* 몰래* 생략* 언급* 隐瞒 不要告诉 保密 不要提 悄悄 秘密 黙っ 隠し 内緒 触れ 言及 知らせ""",
    "data": """
        password* key keys token tokens credential* secrets env inbox mailbox contacts conversation* history messages emails files file
        database prompt prompts configuration cookies card account accounts session environment addresses variables calendar
        records invoices documents dms preamble
        passwort* zugangsdaten kontakte verlauf dateien konto kontakt* datei* mot motdepasse identifiants fichiers boite contrasena*
        archivos correo* cuenta claves credencial* senha* arquivos conta contatos chiavi rubrica conto wachtwoord* bestanden rekening hasl* pliki konto
        kontaktow парол* ключ* файл* контакт* баз* почт* переписк* sifre* dosya* hesap* rehber* كلمة ملفات جهات حساب 비밀번호* 파일* 연락처* 계좌* 명단* 대화*
        密码 文件 通讯录 账户 密钥 对话 提示词 パスワード ファイル 連絡先 口座 鍵 履歴 プロンプト""",
    "user": """
        user users human humans customer* owner person principal operator client visitor* developer people recipient* traveller* shopper*
        employer holder reader maintainer applicant patient boss
        nutzer* benutzer* anwender* kunde* utilisateur* client* usuari* cliente* utente utenti gebruiker* klant* uzytkowni* klient* пользовател* клиент*
        користувач* клієнт* kullanici* musteri* مستخدم* المستخدم* العميل 사용자* 고객* 수신자* 用户 客户 主人 ユーザー 利用者 顧客 お客""",
    "orders": """
        instruct* rule rules guidance guideline* direction* directiv* orders brief task tasks constraint* restriction* polic* configured
        told asked given setup criteria safeguards
        anweisung* regel* vorgabe* aufgabe* auftrag* auftrage richtlinie* consigne* regle* ordre* tache* instruc* regla* orden* tarea* istruzion* regol*
        ordini compito regra* ordem ordens tarefa* opdracht* instructie* regels polecen* zasad* instrukcj* zadani* инструкц* указани* правил* задани* задач*
        вказівк* інструкц* завданн* talimat* kural* gorev* تعليمات* التعليمات* أوامر قواعد 지시* 규칙* 명령* 지침* 임무* 指令 指示 规则 任务 要求 命令 ルール 任務 規則""",
    "void": """
        ignor* disregard* forget* void* expire* obsolete supersede* replaced cancelled lifted suspended drop scrap discard* overrid* stale
        retired longer instead waived withdrawn abandon* unlearn exempt* bypass*
        vergiss* vergess* ignorier* missacht* hinfallig* ungultig* aufgehoben statt oubli* caduc* annul* abstraction olvid* omit* anula* deja dimentic*
        tralascia* lascia* esquec* desconsider* negeer* vergeet* vervall* zignoruj* zapomn* uniewazn* przestan* игнорир* забуд* отмен* брось ігнор* забуд* скасов*
        yok unut* birak* gormezden* تجاهل* انس* دع 무시* 잊* 버리* 취소* 忽略 无视 忘记 忘掉 作废 取消 不再 無視 忘れ 破棄 無効 取り消""",
    "must": """
        must should shall has have needs need required expected ought kindly please lovely grateful appreciate* supposed obliged
        muss mussen soll sollen sollte bitte doit doivent veuillez devez prier priere debe* deben favor deve* devono prego moet moeten dient graag
        musi* nalezy powin* prosze niech долж* следует прошу нужно надо повин* просимо будь lutfen gerek* zorunda* meli يجب يرجى الرجاء 하세요* 해야*
        십시오* 주세요* 바랍니다* 请 必须 应 应当 务必 すること してください べき ください せよ""",
    "if": """
        if when whenever any anyone before after once while upon falls wenn sobald falls si quand lorsque avant cuando antes se quando prima als
        wanneer voordat jesli jezeli gdy zanim если когда прежде якщо коли eger once إذا قبل 如果 当 之前 なら 場合""",
    "not": """
        not never no without nothing don none nicht kein* nie ohne nichts pas jamais sans ne rien aucun* sin nunca nada nao sem non mai senza niente
        niet geen nooit zonder nie bez не без ни нікол* никогда ничего нічого degil olmadan لا لن دون بدون 않* 말고* 말* 없이* 不 别 勿 无需 ない ず しない 不要""",
    "you": """
        you your yours yourself du dein* dir dich sie ihr ihre* tu te toi votre vous ton ta tus tuo tua ti voce seu sua je jouw uw u twoj* ciebie ty ты
        твой твои тебе тебя вы ваш* ти твої sen sana senin أنت لك منك 너* 당신* 귀하* 你 您 あなた""",
    "reads": """
        reading reads read processing processes process parsing parses summari* handling handles reviewing triaging going sorting sorts looking
        indexing helping preparing opening scraping crawling ingest* browsing
        liest lese* lesen bearbeitet zusammenfass* verarbeit* lit lisant traite* resum* lee* procesa* legge* leggi* elabor* riassum* leia le leest
        verwerk* samenvat* czyta* przetwarza* streszcza* чита* обрабатыва* обробля* okuyan* isleyen* ozetle* يقرأ* تقرأ* يلخص* 읽* 처리* 요약* 读 处理 阅读
        总结 摘要 読む 読ん 処理 要約""",
    "now": """
        now immediately first henceforth onwards next further jetzt sofort nun ab zuerst maintenant desormais immediatement ahora
        inmediatamente partir adesso ora subito agora imediatamente nu direct voortaan teraz natychmiast odtad теперь сейчас отныне немедленно тепер негайно
        simdi hemen artik الآن فورا 지금* 즉시* 이제* 现在 立即 马上 从现在 今すぐ 直ちに 今から 以後""",
    "this": """
        this here above below following diese* hier ce cette ici este esta esto questo questa qui aqui deze dit ten ta tej этот эта эту это цей ця цю bu
        هذا هذه 이 본 此 本 这 この 本文""",
    "allowed": """
        already approved authorised authorized authorization permission consent* cleared signed certified verified official admin
        administrator* security staff headquarters compliance agreed clearance
        bereits genehmigt* freigegeben zugestimmt deja autoris* approuv* accord ya autoriz* aprob* gia approvat* ja autorizad* aprovad* al goedgekeurd*
        akkoord juz zatwierdzon* zgod* уже разреш* одобрен* согласован* вже дозвол* погоджен* zaten onaylan* بالفعل وافق* 이미* 결재* 승인* 已经 授权 同意 已获 既に
        すでに 承認済 許可 管理者""",
    "role": """
        pretend* role persona character play plays imagine act acting become became unrestricted unfiltered limitless mode developer
        dan rolle spiele joue role personnage actua finge papel personaje ruolo fingi interpreta personagem finja rol speel wcielasz odgrywa* роль сыгра* притвор*
        rolun* دور 역할* 扮演 角色 演じ 役""",
    "about": """
        injection* jailbreak* attack attacks attacker* phishing malicious adversar* vulnerab* researcher* researchers owasp paper detect*
        defence* defense* exercise trainees test tests assert expect example* payload* mitigat* cve talk study studies inspectors victims
        angriff* angreifer* forscher* attaque* chercheurs ataque* investigador* attacc* ricercator* pesquisador* aanval* onderzoek* atak* badacz* атак* исследовател*
        дослідник* saldir* arastirmac* هجوم* باحث* 공격* 연구* 攻击 研究 攻撃 研究者""",
}
"""Concepts, each with words and beginnings of words."""
