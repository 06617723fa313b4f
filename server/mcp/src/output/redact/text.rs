//! Finds secrets in a text, in linear time.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::{Captures, Regex};

use super::REDACTED;
use super::names::{SECRET_WORDS, ends_with_secret_word, is_reference, is_secret_key};
use super::urls::{find_url_passwords, find_user_info};
use super::values::{
    CREDENTIALS_KEY, begins_with_key, block_list_length, is_after_flag_without_value, is_encoded_credentials,
    is_harmless, value_length,
};

/// Ranges of the secrets of a text, in their order and without overlaps.
pub(super) type Secrets = Vec<Range<usize>>;

/// Searches for secrets of different kinds. Each one reads the output of the one before it.
const SEARCHES: [fn(&str) -> Secrets; 7] = [
    find_known_forms,
    find_encoded_keys,
    find_url_passwords,
    find_user_info,
    find_authorization_credentials,
    find_values_of_names,
    find_values_of_keys,
];

/// Schemes of an Authorization header whose credentials [`find_authorization_credentials`] finds.
const SCHEMES: [&str; 2] = ["bearer", "basic"];
/// Further schemes of an Authorization header.
const OTHER_SCHEMES: [&str; 6] = ["token", "apikey", "digest", "negotiate", "ntlm", "aws4-hmac-sha256"];
/// Minimum length of credentials outside of a header.
const MIN_TOKEN_BYTES: usize = 8;

pub(super) fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern compiles")
}

/// Secrets that are recognized by their form alone.
static KNOWN_FORMS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        // PEM blocks, including truncated ones.
        r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)",
        // JSON web tokens.
        r"eyJ[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*",
        // Keys of AWS, Google, GitHub, GitLab, Slack, Stripe, OpenAI and Anthropic, and webhooks of Slack.
        r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b",
        r"\bAIza[A-Za-z0-9_-]{35}",
        r"\bya29\.[A-Za-z0-9_-]{20,}",
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_-]{20,})",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
        r"https://hooks\.slack\.com/services/[A-Za-z0-9/]+",
        r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
        r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{20,}",
    ]
    .iter()
    .map(|pattern| compile(pattern))
    .collect()
});

/// Base64 of text that begins with `-----BEGIN `, also in lines.
static ENCODED_PEM: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"LS0tLS1CRUdJTi[A-Za-z0-9+/]+(?:(?:\s|\\[nr])+[A-Za-z0-9+/]{40,})*(?:(?:\s|\\[nr])+[A-Za-z0-9+/]+=)?={0,2}",
    )
});

/// Credentials of an Authorization header, and the name of the header if it is there.
static AUTHORIZATION_CREDENTIALS: LazyLock<Regex> = LazyLock::new(|| {
    compile(r#"(?i)(authorization[\\"']*\s*[:=]\s*[\\"'\[]*)?\b(?:bearer|basic)\s+[\\"']*([A-Za-z0-9._~+/-]+=*)"#)
});

/// The name of a pair of a name and a value in JSON, in YAML or as Go prints it, such as that of an environment variable or
/// a header, up to the value.
static NAMED_VALUE: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r#"(?i)\b(?:name|key)\\*["']?\s*[:=]\s*\\*["']?([a-z0-9_.-]+)\\*["']?\s*(?:[,;]\s*|\s)\\*["']?value\\*["']?\s*[:=][ \t]*"#,
    )
});

/// A key that may name a secret, and the separator after it: of a quoted key, an assignment, a mapping, the next item of a
/// list in brackets or in lines, or a flag.
static KEY: LazyLock<Regex> = LazyLock::new(|| {
    compile(&format!(
        r#"(?i)([a-z0-9_.-]*(?:{SECRET_WORDS}|pass|auth)[a-z0-9_.-]*)(\\*["']\s*(?:=>|[:=])\s*|\s*(?:=>|:?=+)\s*|[ \t]*:\s*|\\*["']?\s*,\s*|\\*["']?[ \t]*\r?\n\s*-\s+|\s+)"#
    ))
});

/// Replaces secrets in a text. Returns the text and the number of replaced secrets.
pub(crate) fn redact_text(text: &str) -> (Cow<'_, str>, usize) {
    let mut count = 0;
    let mut text = Cow::Borrowed(text);
    for find in SEARCHES {
        let secrets = find(&text);
        if !secrets.is_empty() {
            count += secrets.len();
            text = Cow::Owned(replace(&text, &secrets));
        }
    }
    (text, count)
}

fn replace(text: &str, secrets: &[Range<usize>]) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut end = 0;
    for secret in secrets {
        redacted.push_str(&text[end..secret.start]);
        redacted.push_str(REDACTED);
        end = secret.end;
    }
    redacted.push_str(&text[end..]);
    redacted
}

fn find_known_forms(text: &str) -> Secrets {
    let mut secrets: Secrets =
        KNOWN_FORMS.iter().flat_map(|form| form.find_iter(text)).map(|found| found.range()).collect();
    sort(&mut secrets);
    secrets
}

/// Sorts secrets and removes overlaps.
pub(super) fn sort(secrets: &mut Secrets) {
    secrets.sort_unstable_by_key(|secret| (secret.start, std::cmp::Reverse(secret.end)));
    let mut end = 0;
    secrets.retain_mut(|secret| {
        secret.start = secret.start.max(end);
        end = end.max(secret.end);
        secret.start < secret.end
    });
}

/// Finds base64 of private keys; that of certificates begins with the same letters.
fn find_encoded_keys(text: &str) -> Secrets {
    let is_key = |encoded: &str| {
        let is_line_break = |at: usize| encoded.as_bytes().get(at.wrapping_sub(1)) == Some(&b'\\');
        let digits = encoded
            .bytes()
            .enumerate()
            .filter(|(at, byte)| (byte.is_ascii_alphanumeric() || b"+/".contains(byte)) && !is_line_break(*at));
        let mut digits: Vec<u8> = digits.map(|(_, byte)| byte).collect();
        digits.truncate(digits.len() / 4 * 4);
        // Text that cannot be decoded is not certain to be harmless.
        STANDARD.decode(digits).map_or(true, |pem| String::from_utf8_lossy(&pem).contains("PRIVATE KEY"))
    };
    ENCODED_PEM.find_iter(text).filter(|found| is_key(found.as_str())).map(|found| found.range()).collect()
}

fn find_authorization_credentials(text: &str) -> Secrets {
    let credentials = |found: Captures<'_>| {
        let is_header = found.get(1).is_some();
        let value = found.get(2)?;
        // An assignment, because equals signs are only at the end of a token (RFC 9110, token68).
        let is_assignment =
            value.as_str().ends_with('=') && text[value.end()..].starts_with(|next: char| next.is_ascii_alphanumeric());
        (is_header || is_token(value.as_str()) && !is_assignment).then(|| value.range())
    };
    AUTHORIZATION_CREDENTIALS.captures_iter(text).filter_map(credentials).collect()
}

/// False for a word of a sentence, such as in "basic authentication".
fn is_token(text: &str) -> bool {
    let text = text.trim_end_matches('.');
    if text.len() < MIN_TOKEN_BYTES {
        return false;
    }
    let is_of_token = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"=+/_.~".contains(&byte);
    text.bytes().skip(1).any(is_of_token)
}

/// Finds the values of pairs of a name and a value, such as `{name: DB_PASSWORD, value: x}`.
fn find_values_of_names(text: &str) -> Secrets {
    let (mut secrets, mut at) = (Secrets::new(), 0);
    while let Some(found) = NAMED_VALUE.captures_at(text, at) {
        let (Some(pair), Some(name)) = (found.get(0), found.get(1)) else { break };
        at = pair.end();
        if !is_secret_key(name.as_str()) {
            continue;
        }
        let rest = &text[at..];
        // A YAML value without quotes is the rest of its line.
        let is_line = pair.as_str().contains('\n') && !rest.starts_with(['"', '\'', '\\', '|', '>', '[', '{']);
        let length = match is_line {
            true => rest.lines().next().map_or(0, |line| line.trim_end_matches([',', ' ']).len()),
            false => value_length(rest),
        };
        if !is_harmless(&rest[..length]) {
            secrets.push(at..at + length);
            at += length;
        }
    }
    secrets
}

fn find_values_of_keys(text: &str) -> Secrets {
    let (mut secrets, mut at) = (Secrets::new(), 0);
    while let Some(found) = KEY.captures_at(text, at) {
        let (Some(key), Some(separator)) = (found.get(1), found.get(2)) else { break };
        at = separator.end();
        let pair =
            Pair { before: &text[..key.start()], key: key.as_str(), separator: separator.as_str(), rest: &text[at..] };
        if let Some(length) = pair.secret_length() {
            secrets.push(at..at + length);
            at += length;
        }
    }
    secrets
}

/// A key in a text, with the text around it.
struct Pair<'t> {
    before: &'t str,
    key: &'t str,
    separator: &'t str,
    /// Text after the separator.
    rest: &'t str,
}

impl Pair<'_> {
    /// Length of the secret after the separator; `None` if there is none.
    fn secret_length(&self) -> Option<usize> {
        let is_credentials_key = self.key == CREDENTIALS_KEY && self.separator != ":";
        if !is_credentials_key && !self.names_secret() {
            return None;
        }
        let length = self.value_length();
        let value = &self.rest[..length];
        let is_shown = if is_credentials_key {
            !is_encoded_credentials(value)
        } else {
            // A word after a comma is an item of a list if the list continues or ends after it.
            let is_in_sentence =
                self.separator.trim() == "," && !self.rest[length..].trim_start().starts_with([',', ']']);
            let has_no_value = self.is_flag() && (is_after_flag_without_value(value) || is_in_sentence);
            is_harmless(value) || is_one_of(value, &SCHEMES) || has_no_value
        };
        if is_shown {
            return None;
        }
        // The credentials follow their scheme.
        let is_scheme = self.key.to_ascii_lowercase().ends_with("authorization") && is_one_of(value, &OTHER_SCHEMES);
        Some(if is_scheme { self.rest.find('\n').unwrap_or(self.rest.len()) } else { length })
    }

    /// Length of the value after the separator; 0 if there is none. In the next line, a key begins an object or belongs to
    /// the object around it.
    fn value_length(&self) -> usize {
        match self.separator.rsplit_once('\n') {
            Some((_, indentation)) if self.rest.starts_with("- ") => block_list_length(self.rest, indentation.len()),
            Some(_) if begins_with_key(self.rest) => 0,
            _ => value_length(self.rest),
        }
    }

    fn names_secret(&self) -> bool {
        match self.separator {
            // An image such as `registry/token:1.2`, a reference such as `secret:shop/db`, or a URL.
            ":" => {
                let is_reference = self.before.ends_with('/') || self.key.eq_ignore_ascii_case("secret");
                ends_with_secret_word(self.key) && !is_reference && !self.rest.starts_with("//")
            }
            assignment if assignment.contains([':', '=']) => is_secret_key(self.key) && !is_reference(self.key),
            _ => self.is_flag(),
        }
    }

    /// True for a flag whose value is the next word or the next item of a list.
    fn is_flag(&self) -> bool {
        !self.separator.contains([':', '=']) && self.key.starts_with('-') && ends_with_secret_word(self.key)
    }
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|other| other.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const ENCODED_KEY: &str = "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1JSUUKLS0tLS1FTkQgUFJJVkFURSBLRVktLS0tLQo=";

    #[rstest]
    #[case::jwt("token is eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_", "token is [redacted]", 1)]
    #[case::aws("key AKIAIOSFODNN7EXAMPLE used", "key [redacted] used", 1)]
    #[case::github("ghp_0123456789abcdefghijABCDEFGHIJ0123456789", "[redacted]", 1)]
    #[case::slack("xoxb-123456789012-abcdef", "[redacted]", 1)]
    #[case::pem("a -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- b", "a [redacted] b", 1)]
    #[case::truncated_pem("-----BEGIN PRIVATE KEY-----\nMIIE", "[redacted]", 1)]
    #[case::pem_in_json(
        r#"{"key":"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n","n":1}"#,
        r#"{"key":"[redacted]\n","n":1}"#,
        1
    )]
    #[case::pgp(
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQOY\n-----END PGP PRIVATE KEY BLOCK----- b",
        "[redacted] b",
        1
    )]
    #[case::password("login password=hunter22 ok", "login password=[redacted] ok", 1)]
    #[case::quoted(r#"{"db_password": "a b", "x": 1}"#, r#"{"db_password": [redacted], "x": 1}"#, 1)]
    #[case::variable("DB_TOKEN=abcdefg", "DB_TOKEN=[redacted]", 1)]
    #[case::header("Authorization: Bearer abcdefghijk", "Authorization: Bearer [redacted]", 1)]
    #[case::url("postgres://app:s3cr3t@db/app", "postgres://app:[redacted]@db/app", 1)]
    #[case::word_before_password("PGPASSWORD=hunter22", "PGPASSWORD=[redacted]", 1)]
    #[case::short_word("DBPASS=hunter22 DB_PASS=hunter33", "DBPASS=[redacted] DB_PASS=[redacted]", 2)]
    #[case::auth_variable("REDISCLI_AUTH=hunter22", "REDISCLI_AUTH=[redacted]", 1)]
    #[case::signing_key("JWT_SIGNING_KEY: hunter22", "JWT_SIGNING_KEY: [redacted]", 1)]
    #[case::account_key(
        "Protocol=https;AccountKey=aGk+/w==;Suffix=x",
        "Protocol=https;AccountKey=[redacted];Suffix=x",
        1
    )]
    #[case::json_in_json(
        r#"{"a":"{\"password\":\"x y\",\"n\":1}"}"#,
        r#"{"a":"{\"password\":[redacted],\"n\":1}"}"#,
        1
    )]
    #[case::escaped_quote(r#"{"password":"a\"b c","n":1}"#, r#"{"password":[redacted],"n":1}"#, 1)]
    #[case::list(r#"{"tokens": ["a b", "c"], "n": 1}"#, r#"{"tokens": [redacted], "n": 1}"#, 1)]
    #[case::plain_list("tokens: [abc, def]\nuser: d", "tokens: [redacted]\nuser: d", 1)]
    #[case::plain_list_in_lines("tokens: [\n  abc,\n  def\n]\nn: 1", "tokens: [redacted]\nn: 1", 1)]
    #[case::list_of_go("{Tokens:[abc def] User:app}", "{Tokens:[redacted] User:app}", 1)]
    #[case::redacted_text_in_json(r#"{"c":"password: [redacted]\nn: 1"}"#, r#"{"c":"password: [redacted]\nn: 1"}"#, 0)]
    #[case::block_list("tokens:\n- abc\n- d e\nuser: d", "tokens:\n[redacted]\nuser: d", 1)]
    #[case::indented_block_list(
        "a:\n  tokens:\n  - abc\n    x\n  - d\n  n: 1",
        "a:\n  tokens:\n  [redacted]\n  n: 1",
        1
    )]
    #[case::object_in_lines(
        "credentials:\n  user: bob\n  password: hunter22",
        "credentials:\n  user: bob\n  password: [redacted]",
        1
    )]
    #[case::block("password: |\n  a b\n  c\nuser: d", "password: [redacted]\nuser: d", 1)]
    #[case::space_before_colon("password : hunter22", "password : [redacted]", 1)]
    #[case::no_space("db password:hunter22", "db password:[redacted]", 1)]
    #[case::struct_of_go("{User:app Password:hunter22}", "{User:app Password:[redacted]}", 1)]
    #[case::hash("{'token' => 'a b'}", "{'token' => [redacted]}", 1)]
    #[case::flag("mysql --password hunter22 -v", "mysql --password [redacted] -v", 1)]
    #[case::flag_in_a_list(r#"["--password","a b","-v"]"#, r#"["--password",[redacted],"-v"]"#, 1)]
    #[case::flag_in_a_plain_list("[mysql, --password, hunter22]", "[mysql, --password, [redacted]]", 1)]
    #[case::flag_in_a_spaced_list("[ --password, hunter22 ]", "[ --password, [redacted] ]", 1)]
    #[case::flag_in_lines("[\n  --password,\n  hunter22\n]", "[\n  --password,\n  [redacted]\n]", 1)]
    #[case::flag_in_a_block_list("args:\n- --token\n- abc\n- -v", "args:\n- --token\n- [redacted]\n- -v", 1)]
    #[case::flag_in_quotes("- \"--token\"\n- \"a b\"\n- c", "- \"--token\"\n- [redacted]\n- c", 1)]
    #[case::pair_in_yaml(
        "- name: DB_PASSWORD\n  value: two words\n- name: LEVEL\n  value: info",
        "- name: DB_PASSWORD\n  value: [redacted]\n- name: LEVEL\n  value: info",
        1
    )]
    #[case::pair_in_json(
        r#"[{"name":"DB_PASSWORD","value":"a b","n":1}]"#,
        r#"[{"name":"DB_PASSWORD","value":[redacted],"n":1}]"#,
        1
    )]
    #[case::pair_in_json_in_json(
        r#"{\"key\":\"API_TOKEN\",\"value\":\"a b\"}"#,
        r#"{\"key\":\"API_TOKEN\",\"value\":[redacted]}"#,
        1
    )]
    #[case::pair_of_go(
        "{Name:DB_PASSWORD Value:abc ValueFrom:nil}",
        "{Name:DB_PASSWORD Value:[redacted] ValueFrom:nil}",
        1
    )]
    #[case::pair_of_a_header(
        "- name: Authorization\n  value: Bearer abc",
        "- name: Authorization\n  value: [redacted]",
        1
    )]
    #[case::docker(r#"{"auths":{"r":{"auth":"YXBwOnBhc3M="}}}"#, r#"{"auths":{"r":{"auth":[redacted]}}}"#, 1)]
    #[case::ldap("userPassword: {SSHA}aGk=", "userPassword: [redacted]", 1)]
    #[case::kubeconfig("client-key-data: TUlJRQ==", "client-key-data: [redacted]", 1)]
    #[case::encoded_key(&format!("key {ENCODED_KEY} b"), "key [redacted] b", 1)]
    #[case::encoded_key_in_lines(&format!("{} {}", &ENCODED_KEY[..20], &ENCODED_KEY[20..]), "[redacted]", 1)]
    #[case::bearer("sent bearer abc0defgh", "sent bearer [redacted]", 1)]
    #[case::bearer_in_json(r#"{\"Authorization\":\"Bearer abcdefghijk\"}"#, r#"{\"Authorization\":[redacted]}"#, 2)]
    #[case::another_scheme("Authorization: Token abc def\nb", "Authorization: [redacted]\nb", 1)]
    #[case::at_sign_in_a_url("postgres://app:p@ss@db/app", "postgres://app:[redacted]@db/app", 1)]
    #[case::slash_in_a_url("postgres://app:p/s@s/w@db:5432/app", "postgres://app:[redacted]@db:5432/app", 1)]
    #[case::query_of_a_url("postgres://app:pw@db/app?mail=a@b", "postgres://app:[redacted]@db/app?mail=a@b", 1)]
    #[case::question_mark_in_a_url("amqp://app:p?w@mq", "amqp://app:[redacted]@mq", 1)]
    #[case::address_as_user("smtp://a@b.example:hunter22@mail:25", "smtp://a@b.example:[redacted]@mail:25", 1)]
    #[case::url_after_a_port("http://a:80/x redis://:hunter22@b", "http://a:80/x redis://:[redacted]@b", 1)]
    #[case::slash_before_a_password("redis://app:/abc@b", "redis://app:[redacted]@b", 1)]
    #[case::numeric_password("redis://app:12345@b", "redis://app:[redacted]@b", 1)]
    #[case::token_in_a_url("https://a1b2c3d4e5f6g7h8@git.example.com/x", "https://[redacted]@git.example.com/x", 1)]
    #[case::data_source("app:hunter22@tcp(db:3306)/shop", "app:[redacted]@tcp(db:3306)/shop", 1)]
    #[case::data_source_after_a_token(
        "a:https://a1b2c3d4e5f6g7h8@tcp(db:3306)/shop",
        "a:[redacted]@tcp(db:3306)/shop",
        1
    )]
    #[case::webhook("post https://hooks.slack.com/services/T0/B0/abc now", "post [redacted] now", 1)]
    #[case::users_in_urls(
        "ssh://git@github.com/x https://bob@git.example.com https://continuous-integration@git.example.com",
        "ssh://git@github.com/x https://bob@git.example.com https://continuous-integration@git.example.com",
        0
    )]
    #[case::names_of_references(
        "secretName: db\ntokenExpirationSeconds: 604800\nPASSWORD_FILE=/run/db",
        "secretName: db\ntokenExpirationSeconds: 604800\nPASSWORD_FILE=/run/db",
        0
    )]
    #[case::references_in_braces(
        r#"imagePullSecrets: [{name: x}], "imagePullSecrets":[{"name":"x"}], secrets: []"#,
        r#"imagePullSecrets: [{name: x}], "imagePullSecrets":[{"name":"x"}], secrets: []"#,
        0
    )]
    #[case::references_in_lines(
        "imagePullSecrets:\n- name: x\nsecret:\n  secretName: y\nsecretKeyRef:\n  name: z\n  key: password\n",
        "imagePullSecrets:\n- name: x\nsecret:\n  secretName: y\nsecretKeyRef:\n  name: z\n  key: password\n",
        0
    )]
    #[case::pairs_without_secrets(
        "- name: LEVEL\n  value: info\n- key: token\n  operator: Exists\n- name: API_TOKEN\n  value:\n",
        "- name: LEVEL\n  value: info\n- key: token\n  operator: Exists\n- name: API_TOKEN\n  value:\n",
        0
    )]
    #[case::an_image("registry/secret-store:1.2.3", "registry/secret-store:1.2.3", 0)]
    #[case::an_author("author: Bob", "author: Bob", 0)]
    #[case::a_boolean("automountServiceAccountToken: false", "automountServiceAccountToken: false", 0)]
    #[case::no_secret("Back-off restarting failed container", "Back-off restarting failed container", 0)]
    #[case::a_sentence("cannot find secret in namespace shop", "cannot find secret in namespace shop", 0)]
    #[case::ordinary_words(
        "BYPASS_CACHE=always COMPASS=north PASSENGERS=everyone",
        "BYPASS_CACHE=always COMPASS=north PASSENGERS=everyone",
        0
    )]
    #[case::longer_words("tokenizer: bpe, secretary: Bob", "tokenizer: bpe, secretary: Bob", 0)]
    #[case::an_authentication_method("auth: basic AUTH_TYPE=oidc", "auth: basic AUTH_TYPE=oidc", 0)]
    #[case::a_sentence_about_schemes(
        "basic authentication. Bearer authentication",
        "basic authentication. Bearer authentication",
        0
    )]
    #[case::a_sentence_about_a_flag(
        "use --token to sign in, --password --verbose, or pass --secret, then restart",
        "use --token to sign in, --password --verbose, or pass --secret, then restart",
        0
    )]
    #[case::an_image_named_token("registry/token:v1 uses", "registry/token:v1 uses", 0)]
    #[case::a_reference("secret:shop/db kind:secret", "secret:shop/db kind:secret", 0)]
    #[case::a_resource_name(
        "arn:aws:secretsmanager:eu-west-1:1:secret:db",
        "arn:aws:secretsmanager:eu-west-1:1:secret:db",
        0
    )]
    #[case::an_object(r#"{"token": {"length": 12}}"#, r#"{"token": {"length": 12}}"#, 0)]
    #[case::an_absent_value("{Token:<nil> Password:<none>}", "{Token:<nil> Password:<none>}", 0)]
    #[case::a_port("GET http://web:8080/@scope/x", "GET http://web:8080/@scope/x", 0)]
    #[case::an_address("http://[::1]:8080/a@b", "http://[::1]:8080/a@b", 0)]
    #[case::a_digest("docker://nginx:1.27@sha256:0123456789abcdef", "docker://nginx:1.27@sha256:0123456789abcdef", 0)]
    #[case::a_list_of_urls(r#"["http://a","b:c@d"]"#, r#"["http://a","b:c@d"]"#, 0)]
    #[case::a_certificate(
        "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUM=",
        "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUM=",
        0
    )]
    fn text_is_redacted(#[case] text: &str, #[case] expected: &str, #[case] count: usize) {
        let (redacted, found) = redact_text(text);
        assert_eq!((redacted.as_ref(), found), (expected, count));
    }

    /// A search whose time is quadratic in the length of the text would take minutes.
    #[rstest]
    #[case::keys("bypass=")]
    #[case::open_quotes("password=\"")]
    #[case::urls("a://b:c")]
    #[case::ports("a://b:1/")]
    #[case::encoded("LS0tLS1CRUdJTi")]
    #[case::open_lists("password=[a")]
    #[case::block_lists("token:\n- ")]
    #[case::pairs("name:token value:\"")]
    #[case::flags("--token, ")]
    fn long_texts_are_searched_in_linear_time(#[case] part: &str) {
        assert!(!redact_text(&part.repeat(50_000)).0.is_empty());
    }
}
