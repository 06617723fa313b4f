//! Sealing of cookies with AES-256-GCM: only holders of the key can read or create a cookie's content.
//!
//! Keys are derived from the lines of a file, so they survive a restart and replicas can share them. The first line
//! seals cookies, all lines open them: a new first line rotates the key, and cookies sealed with the old key stay valid
//! until its line is removed. Random 96-bit nonces allow 2^32 cookies per key (NIST SP 800-38D, section 8.3).

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

use crowsnest_process::data_dir::{self as datadir, DataDir};

/// Default key file in a data directory.
const FILE: &str = "ui-session-key";
/// Minimum length of a key line in characters.
const MIN_KEY_LENGTH: usize = 32;
/// Maximum number of keys in a file: the current one and those being retired.
const MAX_KEYS: usize = 8;
/// Browsers keep cookies of 4096 bytes, name and attributes included.
pub(super) const MAX_VALUE_LENGTH: usize = 3900;
/// HKDF context of the cookie keys.
const INFO: &[u8] = b"crowsnest ui cookies, version 1";

/// Reason why the lines of a file are not valid keys. Messages contain nothing from the file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("no key found: each line must be a key of at least {MIN_KEY_LENGTH} characters")]
    NoKey,
    #[error("line {0} is too short: a key must have at least {MIN_KEY_LENGTH} characters")]
    TooShort(usize),
    #[error("more than {MAX_KEYS} keys found")]
    TooMany,
    #[error("cannot derive the key of line {0}")]
    Derive(usize),
}

/// Purpose of a cookie: a cookie sealed for another purpose does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A sign-in in progress at an OIDC issuer.
    Flow,
    /// A session with a token.
    Session,
}

impl Purpose {
    fn as_bytes(self) -> &'static [u8] {
        match self {
            Purpose::Flow => b"crowsnest sign-in",
            Purpose::Session => b"crowsnest session",
        }
    }
}

/// Cookie keys. Cheap to clone; clones share the current keys.
#[derive(Clone)]
pub struct Seal(Arc<ArcSwap<Vec<LessSafeKey>>>);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    pub fn new(text: &str) -> Result<Self, KeyError> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(derive_keys(text)?))))
    }

    /// Reads the keys from the file that a flag names.
    pub fn from_file(path: &Path) -> anyhow::Result<Self> {
        let flag = || format!("--ui-session-key-file {}", path.display());
        let text = std::fs::read_to_string(path).with_context(flag)?;
        Self::new(&text).with_context(flag)
    }

    /// Reads the key of a data directory; creates it at the first start.
    pub fn from_data_dir(dir: &DataDir) -> anyhow::Result<Self> {
        let path = dir.root().join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => create_key_file(&path)?,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        Self::new(&text).with_context(|| format!("{}: delete the file to create a new key", path.display()))
    }

    /// Replaces the keys with those in `text`.
    pub fn replace(&self, text: &str) -> Result<(), KeyError> {
        self.0.store(Arc::new(derive_keys(text)?));
        Ok(())
    }

    /// Seals `content` into a cookie value; `None` if it is too large for a cookie. Each call needs a fresh `nonce`.
    pub(super) fn seal(&self, purpose: Purpose, content: &[u8], nonce: [u8; NONCE_LEN]) -> Option<String> {
        let keys = self.0.load();
        let mut sealed = content.to_vec();
        let unique_nonce = Nonce::assume_unique_for_key(nonce);
        keys.first()?.seal_in_place_append_tag(unique_nonce, Aad::from(purpose.as_bytes()), &mut sealed).ok()?;
        let text = URL_SAFE_NO_PAD.encode([nonce.as_slice(), &sealed].concat());
        (text.len() <= MAX_VALUE_LENGTH).then_some(text)
    }

    /// Opens a value that [`Seal::seal`] sealed for this purpose; `None` for any other value.
    pub(super) fn open(&self, purpose: Purpose, value: &str) -> Option<Vec<u8>> {
        if value.len() > MAX_VALUE_LENGTH {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(value).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let keys = self.0.load();
        keys.iter().find_map(|key| {
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut sealed = sealed.to_vec();
            let opened = key.open_in_place(nonce, Aad::from(purpose.as_bytes()), &mut sealed).ok()?;
            Some(opened.to_vec())
        })
    }
}

fn create_key_file(path: &Path) -> anyhow::Result<String> {
    let text = format!("{}\n", URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()));
    datadir::write_private(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(text)
}

fn derive_keys(text: &str) -> Result<Vec<LessSafeKey>, KeyError> {
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let keys: Vec<LessSafeKey> = lines.map(|(index, line)| derive_key(index + 1, line)).collect::<Result<_, _>>()?;
    match keys.len() {
        0 => Err(KeyError::NoKey),
        count if count > MAX_KEYS => Err(KeyError::TooMany),
        _ => Ok(keys),
    }
}

fn derive_key(number: usize, line: &str) -> Result<LessSafeKey, KeyError> {
    if line.len() < MIN_KEY_LENGTH {
        return Err(KeyError::TooShort(number));
    }
    let secret = Salt::new(HKDF_SHA256, &[]).extract(line.as_bytes());
    let derived = secret.expand(&[INFO], &AES_256_GCM).map_err(|_| KeyError::Derive(number))?;
    Ok(LessSafeKey::new(UnboundKey::from(derived)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const ONE: &str = "one-one-one-one-one-one-one-one-one";
    const TWO: &str = "two-two-two-two-two-two-two-two-two";

    fn seal(text: &str) -> Seal {
        Seal::new(text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn only_the_same_key_and_purpose_open_a_cookie() {
        let (first_seal, other_seal) = (seal(ONE), seal(TWO));
        let value = first_seal.seal(Purpose::Session, b"a bearer token", [9; NONCE_LEN]).unwrap();
        assert_eq!(first_seal.open(Purpose::Session, &value).as_deref(), Some(&b"a bearer token"[..]));
        assert_eq!(first_seal.open(Purpose::Flow, &value), None);
        assert_eq!(other_seal.open(Purpose::Session, &value), None);
        assert!(!value.contains("bearer") && !value.contains(&URL_SAFE_NO_PAD.encode("bearer")));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let first_seal = seal(ONE);
        let value = first_seal.seal(Purpose::Session, b"a bearer token", [9; NONCE_LEN]).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&value).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(first_seal.open(Purpose::Session, &URL_SAFE_NO_PAD.encode(&changed)), None, "byte {at}");
            assert_eq!(
                first_seal.open(Purpose::Session, &URL_SAFE_NO_PAD.encode(&bytes[..at])),
                None,
                "the first {at}"
            );
        }
    }

    #[test]
    fn keys_are_rotated_without_ending_sessions() {
        let first_seal = seal(ONE);
        let before = first_seal.seal(Purpose::Session, b"a", [1; NONCE_LEN]).unwrap();
        first_seal.replace(&format!("{TWO}\n{ONE}\n")).unwrap();
        let after = first_seal.seal(Purpose::Session, b"a", [2; NONCE_LEN]).unwrap();
        assert!(first_seal.open(Purpose::Session, &before).is_some());
        assert!(
            seal(TWO).open(Purpose::Session, &after).is_some() && seal(ONE).open(Purpose::Session, &after).is_none()
        );
        first_seal.replace(TWO).unwrap();
        assert!(
            first_seal.open(Purpose::Session, &before).is_none() && first_seal.open(Purpose::Session, &after).is_some()
        );
        // An invalid key leaves the current keys in use.
        assert!(first_seal.replace("short").is_err());
        assert!(first_seal.open(Purpose::Session, &after).is_some());
    }

    #[rstest]
    #[case::empty("", "no key found: each line must be a key of at least 32 characters")]
    #[case::blank("\n  \n", "no key found: each line must be a key of at least 32 characters")]
    #[case::short(
        "one-one-one-one-one-one-one-one-one\nsecret",
        "line 2 is too short: a key must have at least 32 characters"
    )]
    #[case::many(&format!("{ONE}\n").repeat(9), "more than 8 keys found")]
    fn invalid_keys_are_rejected_and_hidden(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(Seal::new(text).unwrap_err().to_string(), expected);
    }

    #[test]
    fn large_content_is_not_sealed() {
        let first_seal = seal(ONE);
        assert!(first_seal.seal(Purpose::Session, &[b'a'; 2_800], [1; NONCE_LEN]).is_some());
        assert!(first_seal.seal(Purpose::Session, &[b'a'; 3_900], [1; NONCE_LEN]).is_none());
    }

    #[test]
    fn data_directories_keep_their_key_private() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("data");
        let dir = DataDir::open(&root, false).unwrap();
        let value = Seal::from_data_dir(&dir).unwrap().seal(Purpose::Session, b"a", [1; NONCE_LEN]).unwrap();
        assert!(Seal::from_data_dir(&dir).unwrap().open(Purpose::Session, &value).is_some());
        let mode = std::fs::metadata(root.join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(root.join(FILE), "cut").unwrap();
        let error = format!("{:#}", Seal::from_data_dir(&dir).unwrap_err());
        assert!(error.contains("delete the file to create a new key") && !error.contains("cut"), "{error}");
    }

    proptest! {
        /// Text that was not sealed here never opens and never panics.
        #[test]
        fn arbitrary_text_never_opens(text in "\\PC{0,300}") {
            prop_assert_eq!(seal(ONE).open(Purpose::Session, &text), None);
        }

        #[test]
        fn arbitrary_bytes_never_open(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(seal(ONE).open(Purpose::Session, &URL_SAFE_NO_PAD.encode(bytes)), None);
        }

        #[test]
        fn sealed_content_opens_unchanged(bytes in prop::collection::vec(any::<u8>(), 0..2_000), nonce: [u8; 12]) {
            let first_seal = seal(ONE);
            let value = first_seal.seal(Purpose::Flow, &bytes, nonce);
            prop_assert_eq!(value.and_then(|value| first_seal.open(Purpose::Flow, &value)), Some(bytes));
        }
    }
}
