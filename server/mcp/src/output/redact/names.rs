//! Names of fields, keys, variables and flags that contain secrets.

use std::sync::LazyLock;

use regex::Regex;

use super::text::compile;

/// Words that name a secret, also at the end of a longer word, as in `PGPASSWORD`.
pub(super) const SECRET_WORDS: &str = "password|passwd|passphrase|passcode|passkey|pwd|secret|token|credential|authorization|signature\
|(?:access|account|api|auth|encryption|hmac|master|private|secret|session|shared|signing)[-_.]?key\
|client[-_.]?key[-_.]?data";
/// Words that may follow without a separator, as in `tokenvalue`.
const SUFFIXES: &str = "(?:key|value|data|hash|string)?s?";

/// Beginnings of words that end in `pass` and do not name a password.
const ORDINARY_PASS_WORDS: [&str; 9] = ["by", "com", "tres", "sur", "over", "under", "multi", "single", "band"];

/// Suffixes of the names of fields that refer to a secret or describe it.
const REFERENCE_SUFFIXES: [&str; 17] = [
    "name",
    "names",
    "namespace",
    "ref",
    "path",
    "file",
    "url",
    "type",
    "kind",
    "mode",
    "policy",
    "class",
    "provider",
    "algorithm",
    "version",
    "seconds",
    "ttl",
];

static SECRET_WORD_PATTERN: LazyLock<Regex> = LazyLock::new(|| compile(&format!("(?i){SECRET_WORDS}")));
static SECRET_KEY_PATTERN: LazyLock<Regex> =
    LazyLock::new(|| compile(&format!("(?i)(?:{SECRET_WORDS}){SUFFIXES}(?:$|[^a-z])")));
static SECRET_END_PATTERN: LazyLock<Regex> =
    LazyLock::new(|| compile(&format!("(?i)(?:{SECRET_WORDS}){SUFFIXES}[^a-z]*$")));
/// Variables such as `REDISCLI_AUTH`. In other spellings, `auth` usually describes a method.
static AUTH_VARIABLE_PATTERN: LazyLock<Regex> = LazyLock::new(|| compile("^[A-Z0-9_]*[A-Z0-9]_AUTH$"));

/// True for a name such as `DB_PASSWORD`, `dbpassword` or `apiKey`.
pub(super) fn is_secret_key(name: &str) -> bool {
    let words = separate_words(name);
    SECRET_KEY_PATTERN.is_match(&words)
        || words.split(is_separator).any(is_password_word)
        || AUTH_VARIABLE_PATTERN.is_match(name)
}

/// True for a name that may be a secret key in another spelling, such as `tokenold` for `tokenOld`: the case of its letters
/// does not separate words.
pub(super) fn may_be_secret_key(name: &str) -> bool {
    SECRET_WORD_PATTERN.is_match(name) || is_secret_key(&name.to_ascii_uppercase())
}

/// True for a name whose last word names a secret, such as `db_password`, but not `secret-store`.
pub(super) fn ends_with_secret_word(name: &str) -> bool {
    let words = separate_words(name);
    let last_word = words.split(is_separator).rfind(|word| !word.is_empty());
    SECRET_END_PATTERN.is_match(&words)
        || last_word.is_some_and(is_password_word)
        || AUTH_VARIABLE_PATTERN.is_match(name)
}

/// True for a name such as `secretName`, whose value refers to a secret or describes it.
pub(super) fn is_reference(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    REFERENCE_SUFFIXES.iter().any(|end| name.ends_with(end))
}

/// Separates the words of a name in camel case by underscores.
fn separate_words(name: &str) -> String {
    let mut words = String::with_capacity(name.len());
    for character in name.chars() {
        if character.is_ascii_uppercase() && words.ends_with(|last: char| last.is_ascii_lowercase()) {
            words.push('_');
        }
        words.push(character);
    }
    words
}

fn is_separator(character: char) -> bool {
    !character.is_ascii_alphabetic()
}

/// True for `pass` and for words such as `DBPASS`, but not for `bypass`.
fn is_password_word(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let beginning = word.strip_suffix("pass");
    beginning.is_some_and(|beginning| !ORDINARY_PASS_WORDS.iter().any(|ordinary| beginning.ends_with(ordinary)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("DB_PASSWORD", true)]
    #[case("PGPASSWORD", true)]
    #[case("SMTPPASSWORD", true)]
    #[case("dbpassword", true)]
    #[case("passwords.txt", true)]
    #[case("DBPASS", true)]
    #[case("DB_PASS", true)]
    #[case("dbPass", true)]
    #[case("MYSQL_PWD", true)]
    #[case("accesstoken", true)]
    #[case("AUTHTOKEN", true)]
    #[case("tokenvalue", true)]
    #[case("clientSecret", true)]
    #[case("apiKey", true)]
    #[case("API_KEYS", true)]
    #[case("AWS_SECRET_ACCESS_KEY", true)]
    #[case("JWT_SIGNING_KEY", true)]
    #[case("STORAGE_ACCOUNT_KEY", true)]
    #[case("AccountKey", true)]
    #[case("SharedAccessKey", true)]
    #[case("client-key-data", true)]
    #[case("REDISCLI_AUTH", true)]
    #[case("passcode", true)]
    #[case("PASSKEY", true)]
    #[case("tls.key", false)]
    #[case("LOG_LEVEL", false)]
    #[case("AUTHOR", false)]
    #[case("AUTH_TYPE", false)]
    #[case("basicAuth", false)]
    #[case("OAUTH", false)]
    #[case("PASSENGERS", false)]
    #[case("BYPASS_CACHE", false)]
    #[case("COMPASS", false)]
    #[case("encompass", false)]
    #[case("passwordless", false)]
    #[case("TOKENIZERS_PARALLELISM", false)]
    #[case("secretary", false)]
    #[case("client-certificate-data", false)]
    #[case("MONKEY", false)]
    fn keys_that_name_secrets_are_recognized(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_secret_key(name), expected);
    }

    #[rstest]
    #[case("--password", true)]
    #[case("password1", true)]
    #[case("DBPASS", true)]
    #[case("access-token", true)]
    #[case("secret-store", false)]
    #[case("--token-file", false)]
    #[case("bypass", false)]
    fn the_last_word_of_a_name_is_recognized(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(ends_with_secret_word(name), expected);
    }

    #[rstest]
    #[case("secretName", true)]
    #[case("secretKeyRef", true)]
    #[case("tokenExpirationSeconds", true)]
    #[case("tokenTTL", true)]
    #[case("imagePullSecrets", false)]
    #[case("DB_PASSWORD", false)]
    fn names_of_references_are_recognized(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_reference(name), expected);
    }
}
