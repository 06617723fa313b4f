//! Signs and verifies the JSON web tokens of service accounts.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::KeyPair as CertificateKey;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey,
};
use rustls_pki_types::PrivatePkcs1KeyDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::authn::authority::write_secret;
use crate::authn::rsa;
use crate::error::{Error, Result};

/// Issuer and default audience of a cluster's tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc";

/// Signature algorithm of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// ECDSA on P-256; keys are generated quickly.
    #[default]
    Es256,
    /// RSA with 2048 bits, as in most clusters; key generation takes up to a second.
    Rs256,
}

enum Key {
    Es256(EcdsaKeyPair),
    Rs256(RsaKeyPair),
}

/// Signing key of a server, and the audiences of its tokens.
pub struct TokenSigner {
    key: Key,
    key_id: String,
    audiences: Vec<String>,
}

fn generate_key_pem(algorithm: Algorithm) -> Result<String> {
    Ok(match algorithm {
        Algorithm::Es256 => CertificateKey::generate()?.serialize_pem(),
        Algorithm::Rs256 => {
            let encoded = STANDARD.encode(rsa::generate()?);
            let lines: Vec<&str> =
                encoded.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap_or_default()).collect();
            format!("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n", lines.join("\n"))
        }
    })
}

impl TokenSigner {
    /// Creates a signer with a new key.
    pub fn generate(algorithm: Algorithm) -> Result<Self> {
        Self::from_pem(&generate_key_pem(algorithm)?)
    }

    /// Loads `service-account.key` from `directory`; creates it if it is missing.
    pub fn open(directory: &Path, algorithm: Algorithm) -> Result<Self> {
        let path = directory.join("service-account.key");
        if !path.exists() {
            std::fs::create_dir_all(directory).map_err(|source| Error::Io { path: directory.to_owned(), source })?;
            write_secret(&path, &generate_key_pem(algorithm)?)?;
        }
        let pem = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
        Self::from_pem(&pem)
    }

    fn from_pem(pem: &str) -> Result<Self> {
        let key_error = |e: ring::error::KeyRejected| Error::Key(e.to_string());
        let key = match PrivatePkcs1KeyDer::from_pem_slice(pem.as_bytes()) {
            Ok(der) => Key::Rs256(RsaKeyPair::from_der(der.secret_pkcs1_der()).map_err(key_error)?),
            Err(_) => {
                let der = CertificateKey::from_pem(pem)?.serialize_der();
                let signing_algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
                Key::Es256(EcdsaKeyPair::from_pkcs8(signing_algorithm, &der, &SystemRandom::new()).map_err(key_error)?)
            }
        };
        let mut signer = Self { key, key_id: String::new(), audiences: vec![ISSUER.to_owned()] };
        let digest = ring::digest::digest(&ring::digest::SHA256, signer.public_key());
        signer.key_id = URL_SAFE_NO_PAD.encode(digest.as_ref());
        Ok(signer)
    }

    fn public_key(&self) -> &[u8] {
        match &self.key {
            Key::Es256(key) => key.public_key().as_ref(),
            Key::Rs256(key) => key.public_key().as_ref(),
        }
    }

    /// Name of the signature algorithm in token headers.
    pub fn algorithm(&self) -> &'static str {
        match &self.key {
            Key::Es256(_) => "ES256",
            Key::Rs256(_) => "RS256",
        }
    }

    /// Audiences for which this server accepts tokens.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The public key as a JSON web key set.
    pub fn key_set(&self) -> Value {
        let mut entry = json!({"use": "sig", "kid": self.key_id, "alg": self.algorithm()});
        match &self.key {
            Key::Es256(key) => {
                let point = key.public_key().as_ref();
                entry["kty"] = "EC".into();
                entry["crv"] = "P-256".into();
                entry["x"] = URL_SAFE_NO_PAD.encode(&point[1..33]).into();
                entry["y"] = URL_SAFE_NO_PAD.encode(&point[33..65]).into();
            }
            Key::Rs256(key) => {
                let parts: PublicKeyComponents<Vec<u8>> = key.public_key().into();
                entry["kty"] = "RSA".into();
                entry["n"] = URL_SAFE_NO_PAD.encode(parts.n).into();
                entry["e"] = URL_SAFE_NO_PAD.encode(parts.e).into();
            }
        }
        json!({"keys": [entry]})
    }

    /// Signs claims and returns the token in compact serialization (RFC 7515).
    pub fn sign(&self, claims: &Value) -> Result<String> {
        let header = json!({"alg": self.algorithm(), "kid": self.key_id});
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(&header), encode(claims));
        let signing_error = |_| Error::Key("cannot sign the token".into());
        let random = SystemRandom::new();
        let signature = match &self.key {
            Key::Es256(key) => key.sign(&random, message.as_bytes()).map_err(signing_error)?.as_ref().to_vec(),
            Key::Rs256(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature).map_err(signing_error)?;
                signature
            }
        };
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The claims of a token signed with this key; `None` for any other token.
    pub fn verify(&self, token: &str) -> Option<Value> {
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let header: Value = serde_json::from_slice(&decode(header)?).ok()?;
        if header["alg"] != self.algorithm() {
            return None;
        }
        let (message, signature) = (message.as_bytes(), decode(signature)?);
        match &self.key {
            Key::Es256(_) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.public_key()).verify(message, &signature)
            }
            Key::Rs256(_) => {
                UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, self.public_key()).verify(message, &signature)
            }
        }
        .ok()?;
        serde_json::from_slice(&decode(claims)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_tokens_are_rejected() {
        let (signer, second_signer) =
            (TokenSigner::generate(Algorithm::Es256).unwrap(), TokenSigner::generate(Algorithm::Es256).unwrap());
        let claims = json!({"sub": "ann"});
        let token = signer.sign(&claims).unwrap();
        assert_eq!(signer.verify(&token), Some(claims));
        assert_eq!(second_signer.verify(&token), None);
        assert_eq!(signer.verify("nonsense"), None);
    }
}
