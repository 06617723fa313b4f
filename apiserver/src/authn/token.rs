//! Signing and checking of JSON web tokens for service accounts (ES256).

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::KeyPair;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, UnparsedPublicKey};
use serde_json::{Value, json};

use crate::authn::authority::write_secret;
use crate::error::{Error, Result};

/// Issuer and default audience of a cluster's tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc";

/// The key of one server and what its tokens say.
pub struct TokenSigner {
    key: EcdsaKeyPair,
    public: Vec<u8>,
    key_id: String,
    audiences: Vec<String>,
}

impl TokenSigner {
    /// A signer with a new key.
    pub fn generate() -> Result<Self> {
        Self::from_pem(&KeyPair::generate()?.serialize_pem())
    }

    /// The signer of `directory`, whose key is made when there is none: `service-account.key`.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join("service-account.key");
        if !path.exists() {
            std::fs::create_dir_all(directory).map_err(|source| Error::Io { path: directory.to_owned(), source })?;
            write_secret(&path, &KeyPair::generate()?.serialize_pem())?;
        }
        let pem = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
        Self::from_pem(&pem)
    }

    fn from_pem(pem: &str) -> Result<Self> {
        use ring::signature::KeyPair as _;
        let pair = KeyPair::from_pem(pem)?;
        let bad = |e: ring::error::KeyRejected| Error::Key(e.to_string());
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pair.serialize_der(), &SystemRandom::new())
                .map_err(bad)?;
        let public = key.public_key().as_ref().to_vec();
        let digest = ring::digest::digest(&ring::digest::SHA256, &public);
        Ok(Self { key, public, key_id: URL_SAFE_NO_PAD.encode(digest.as_ref()), audiences: vec![ISSUER.to_owned()] })
    }

    /// Audiences this server takes tokens for.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The public keys as a JSON web key set.
    pub fn key_set(&self) -> Value {
        let coordinate = |range: std::ops::Range<usize>| URL_SAFE_NO_PAD.encode(&self.public[range]);
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256",
            "x": coordinate(1..33), "y": coordinate(33..65),
        }]})
    }

    pub fn sign(&self, claims: &Value) -> Result<String> {
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(&header), encode(claims));
        let signature =
            self.key.sign(&SystemRandom::new(), message.as_bytes()).map_err(|_| Error::Key("signing failed".into()))?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }

    /// The claims of a token with our signature; `None` for everything else.
    pub fn verify(&self, token: &str) -> Option<Value> {
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let header: Value = serde_json::from_slice(&decode(header)?).ok()?;
        if header["alg"] != "ES256" {
            return None;
        }
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.public)
            .verify(message.as_bytes(), &decode(signature)?)
            .ok()?;
        serde_json::from_slice(&decode(claims)?).ok()
    }
}
