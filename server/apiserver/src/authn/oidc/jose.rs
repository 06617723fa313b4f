//! Signed tokens and their keys (RFC 7515, 7517, 7518), as far as ID tokens need them. Has no side effects.
//!
//! Signatures are verified with ring, as those of ServiceAccount tokens are. It lacks ES512, which kube-apiserver
//! supports. The crate `jsonwebtoken` has no ring backend since its version 10: it requires aws-lc, which this project
//! excludes, or six RustCrypto crates, among them `rsa` with RUSTSEC-2023-0071.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rsa::PublicKeyComponents;
use ring::signature;
use serde::Deserialize;

use super::claims::Claims;

/// Maximum length of a token in bytes; longer ones do not fit into request headers.
const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// Signature algorithms of tokens. Others, such as `none` and those with a shared secret (HS256), are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
}

impl Algorithm {
    pub const NAMES: [&'static str; 8] = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384"];

    const ALL: [Self; 8] =
        [Self::Rs256, Self::Rs384, Self::Rs512, Self::Ps256, Self::Ps384, Self::Ps512, Self::Es256, Self::Es384];

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Reason why a token is not valid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("malformed token")]
    Malformed,
    #[error("id token signed with unsupported algorithm, expected {expected:?} got {got:?}")]
    Algorithm { expected: Vec<&'static str>, got: String },
    #[error("failed to verify signature: the issuer publishes no key {0:?}")]
    UnknownKey(String),
    #[error("failed to verify signature: failed to verify id token signature")]
    Signature,
    #[error("id token issued by a different provider, expected {expected:?} got {got:?}")]
    Issuer { expected: String, got: String },
    #[error("expected audience {expected:?} got {got:?}")]
    Audience { expected: String, got: Vec<String> },
    #[error("token is expired (Token Expiry: {0})")]
    Expired(String),
    #[error("current time {now} before the nbf (not before) time: {not_before}")]
    NotYetValid { now: String, not_before: String },
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
    /// Critical header extensions, of which none is supported: tokens with them are rejected.
    crit: Option<serde::de::IgnoredAny>,
}

/// A parsed token whose signature is not verified.
pub(super) struct SignedToken<'a> {
    header: Header,
    /// The signing input: header and claims as encoded.
    message: &'a str,
    signature: Vec<u8>,
    claims: Claims,
}

impl<'a> SignedToken<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, TokenError> {
        Self::parse_parts(token).ok_or(TokenError::Malformed)
    }

    fn parse_parts(token: &'a str) -> Option<Self> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
        let claims = serde_json::from_slice(&decode(claims)?).ok()?;
        header.crit.is_none().then_some(Self { header, message, signature: decode(signature)?, claims })
    }

    pub(super) fn algorithm(&self) -> &str {
        &self.header.alg
    }

    pub(super) fn key_id(&self) -> &str {
        &self.header.kid
    }
}

/// Issuer claim of a token whose signature is not verified.
pub(super) fn unverified_issuer(token: &str) -> Option<String> {
    SignedToken::parse_parts(token)?.claims.get("iss")?.as_str().map(str::to_owned)
}

#[derive(Debug)]
enum KeyMaterial {
    Rsa(PublicKeyComponents<Vec<u8>>),
    /// Point in uncompressed form.
    P256(Vec<u8>),
    P384(Vec<u8>),
}

#[derive(Debug)]
struct PublicKey {
    id: String,
    /// The only algorithm that the key may be used with, if the key set restricts it.
    algorithm: Option<String>,
    material: KeyMaterial,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: String,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
}

#[derive(Deserialize)]
struct JwkSet {
    keys: Vec<serde_json::Value>,
}

impl PublicKey {
    /// Parses a key; `None` for key types and uses that are not supported.
    fn from_jwk(jwk: Jwk) -> Option<Self> {
        if jwk.purpose.is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let decode_integer = |text: &str| {
            let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
            let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
            (zeros < bytes.len()).then(|| bytes[zeros..].to_vec())
        };
        let decode_point = |size: usize| {
            let mut point = vec![4; 1 + 2 * size];
            for (coordinate, end) in [(&jwk.x, 1 + size), (&jwk.y, 1 + 2 * size)] {
                let bytes = decode_integer(coordinate).filter(|bytes| bytes.len() <= size)?;
                point[end - size..end].fill(0);
                point[end - bytes.len()..end].copy_from_slice(&bytes);
            }
            Some(point)
        };
        let material = match (jwk.kty.as_str(), jwk.crv.as_str()) {
            ("RSA", _) => {
                KeyMaterial::Rsa(PublicKeyComponents { n: decode_integer(&jwk.n)?, e: decode_integer(&jwk.e)? })
            }
            ("EC", "P-256") => KeyMaterial::P256(decode_point(32)?),
            ("EC", "P-384") => KeyMaterial::P384(decode_point(48)?),
            _ => return None,
        };
        Some(Self { id: jwk.kid, algorithm: jwk.alg, material })
    }

    /// True if the token was signed with this key. The algorithm is the one allowed by configuration, not the one
    /// that the token claims.
    fn verifies(&self, token: &SignedToken<'_>, algorithm: Algorithm) -> bool {
        if self.algorithm.as_ref().is_some_and(|required| required != algorithm.name()) {
            return false;
        }
        let (message, signature_bytes) = (token.message.as_bytes(), token.signature.as_slice());
        let verify_rsa =
            |key: &PublicKeyComponents<Vec<u8>>, parameters| key.verify(parameters, message, signature_bytes).is_ok();
        let verify_ecdsa = |point: &[u8], algorithm: &'static dyn signature::VerificationAlgorithm| {
            signature::UnparsedPublicKey::new(algorithm, point).verify(message, signature_bytes).is_ok()
        };
        match (&self.material, algorithm) {
            (KeyMaterial::Rsa(key), Algorithm::Rs256) => verify_rsa(key, &signature::RSA_PKCS1_2048_8192_SHA256),
            (KeyMaterial::Rsa(key), Algorithm::Rs384) => verify_rsa(key, &signature::RSA_PKCS1_2048_8192_SHA384),
            (KeyMaterial::Rsa(key), Algorithm::Rs512) => verify_rsa(key, &signature::RSA_PKCS1_2048_8192_SHA512),
            (KeyMaterial::Rsa(key), Algorithm::Ps256) => verify_rsa(key, &signature::RSA_PSS_2048_8192_SHA256),
            (KeyMaterial::Rsa(key), Algorithm::Ps384) => verify_rsa(key, &signature::RSA_PSS_2048_8192_SHA384),
            (KeyMaterial::Rsa(key), Algorithm::Ps512) => verify_rsa(key, &signature::RSA_PSS_2048_8192_SHA512),
            (KeyMaterial::P256(point), Algorithm::Es256) => verify_ecdsa(point, &signature::ECDSA_P256_SHA256_FIXED),
            (KeyMaterial::P384(point), Algorithm::Es384) => verify_ecdsa(point, &signature::ECDSA_P384_SHA384_FIXED),
            _ => false,
        }
    }
}

/// Published keys of an issuer.
#[derive(Debug, Default)]
pub struct Keys(Vec<PublicKey>);

impl Keys {
    /// Parses a JSON web key set; keys that cannot be read are skipped.
    pub(super) fn parse(set: &[u8]) -> Result<Self, serde_json::Error> {
        let set: JwkSet = serde_json::from_slice(set)?;
        let keys =
            set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok().and_then(PublicKey::from_jwk));
        Ok(Self(keys.collect()))
    }

    /// Keys with this ID; all keys if it is empty.
    fn with_id<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a PublicKey> {
        self.0.iter().filter(move |key| id.is_empty() || key.id == id)
    }

    /// True if a key has this ID; an empty ID matches any key.
    pub(super) fn has_key(&self, id: &str) -> bool {
        self.with_id(id).next().is_some()
    }

    /// Verifies the signature of a token with the keys of its ID, and returns its claims. Does not check the claims.
    pub(super) fn verify(&self, token: &SignedToken<'_>, algorithm: Algorithm) -> Result<Claims, TokenError> {
        if !self.has_key(token.key_id()) {
            return Err(TokenError::UnknownKey(token.key_id().to_owned()));
        }
        let is_verified = self.with_id(token.key_id()).any(|key| key.verifies(token, algorithm));
        if is_verified { Ok(token.claims.clone()) } else { Err(TokenError::Signature) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::token;
    use serde_json::{Value, json};

    /// The signer of an issuer, and the keys that the issuer publishes.
    fn issuer(kind: token::Algorithm) -> (token::TokenSigner, Value) {
        let signer = token::TokenSigner::generate(kind).unwrap();
        let keys = signer.key_set();
        (signer, keys)
    }

    fn verify(keys: &Value, token: &str, algorithm: Algorithm) -> Result<Claims, TokenError> {
        let keys = Keys::parse(keys.to_string().as_bytes()).unwrap();
        keys.verify(&SignedToken::parse(token)?, algorithm)
    }

    #[test]
    fn signatures_are_verified_with_the_published_keys() {
        for (kind, algorithm, other) in [
            (token::Algorithm::Es256, Algorithm::Es256, Algorithm::Rs256),
            (token::Algorithm::Rs256, Algorithm::Rs256, Algorithm::Ps256),
        ] {
            let ((signer, keys), (foreign_signer, _)) = (issuer(kind), issuer(kind));
            let claims = json!({"sub": "alice"});
            let token = signer.sign(&claims).unwrap();
            assert_eq!(verify(&keys, &token, algorithm).map(Value::Object), Ok(claims.clone()));
            // A different algorithm is rejected, also with a key that is not restricted to one algorithm.
            assert_eq!(verify(&keys, &token, other), Err(TokenError::Signature));
            let mut unrestricted = keys.clone();
            unrestricted["keys"][0].as_object_mut().unwrap().remove("alg");
            assert_eq!(verify(&unrestricted, &token, other), Err(TokenError::Signature));
            assert!(verify(&unrestricted, &token, algorithm).is_ok());
            // A token of another issuer: its key ID is unknown; without an ID, no key verifies the signature.
            let foreign = foreign_signer.sign(&claims).unwrap();
            assert!(matches!(verify(&keys, &foreign, algorithm), Err(TokenError::UnknownKey(_))));
            let (head, rest) = foreign.split_once('.').unwrap();
            let mut header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).unwrap()).unwrap();
            header.as_object_mut().unwrap().remove("kid");
            let without_key_id = format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header.to_string()));
            assert_eq!(verify(&keys, &without_key_id, algorithm), Err(TokenError::Signature));
            // A modified claim.
            let (message, signature_bytes) = token.rsplit_once('.').unwrap();
            let forged = URL_SAFE_NO_PAD.encode(json!({"sub": "root"}).to_string());
            let forged = format!("{}.{forged}.{signature_bytes}", message.split_once('.').unwrap().0);
            assert_eq!(verify(&keys, &forged, algorithm), Err(TokenError::Signature));
        }
    }

    #[test]
    fn malformed_tokens_are_rejected() {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let crit = format!("{}.{}.AA", part(json!({"alg": "ES256", "crit": ["b64"]})), part(json!({})));
        let list = format!("{}.{}.AA", part(json!({"alg": "ES256"})), part(json!([])));
        let long = format!("{}.{}.{}", part(json!({"alg": "ES256"})), part(json!({})), "A".repeat(MAX_TOKEN_BYTES));
        for token in ["", "a", "a.b", "a.b.c", "..", "....", &crit, &list, &long] {
            assert_eq!(SignedToken::parse(token).err(), Some(TokenError::Malformed), "{token}");
            assert_eq!(unverified_issuer(token), None);
        }
    }

    #[test]
    fn unsupported_key_types_and_uses_are_skipped() {
        let (_, keys) = issuer(token::Algorithm::Es256);
        let mut for_encryption = keys["keys"][0].clone();
        for_encryption["use"] = "enc".into();
        let set = json!({"keys": [
            for_encryption, {"kty": "oct", "k": "AAAA"}, {"kty": "EC", "crv": "P-256", "x": "", "y": ""},
            {"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}, {"kty": "RSA", "n": "%", "e": "AQAB"}, {"kty": 7}, 7,
        ]});
        assert_eq!(Keys::parse(set.to_string().as_bytes()).unwrap().0.len(), 0);
        assert!(Keys::parse(b"{}").is_err());
    }
}
