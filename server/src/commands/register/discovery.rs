//! Discovers and verifies the control plane as `kubeadm join` does: its `cluster-info` must be signed with the token,
//! name a CA with a known hash, and be the same when it is read again over a connection verified by that CA.

use std::str::FromStr;

use anyhow::{Context, anyhow, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::Kubeconfig;
use kube::{Api, Client, Config};
use ring::digest::{SHA256, digest};
use ring::hmac;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use crowsnest_cli::clients::describe_cause;

/// A bootstrap token `<id>.<secret>`; `Debug` hides the secret.
#[derive(Clone)]
pub(super) struct Token {
    id: String,
    secret: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.…", self.id)
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_word = |text: &str, length| {
            text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        match text.split_once('.').filter(|(id, secret)| is_word(id, 6) && is_word(secret, 16)) {
            Some((id, secret)) => Ok(Self { id: id.to_owned(), secret: secret.to_owned() }),
            None => {
                Err("expected a token of six letters or digits, a dot and sixteen letters or digits; create one with `crowsnest token create`".into())
            }
        }
    }
}

/// SHA-256 hash of a CA's public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CaHash(String);

impl FromStr for CaHash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hash = text.strip_prefix("sha256:").map(str::to_lowercase);
        let is_hash = |hash: &String| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        hash.filter(is_hash)
            .map(Self)
            .ok_or_else(|| format!("invalid hash {text:?}: expected sha256: and 64 hexadecimal digits"))
    }
}

/// The trusted certificate authorities.
#[derive(Debug, Clone)]
pub(super) enum TrustedCas {
    Hashes(Vec<CaHash>),
    Any,
}

/// A verified control plane.
#[derive(Debug)]
pub(super) struct ControlPlane {
    pub(super) server: http::Uri,
    pub(super) authority: Vec<CertificateDer<'static>>,
    proxy: Option<http::Uri>,
}

impl ControlPlane {
    fn config(&self) -> Config {
        let mut config = Config::new(self.server.clone());
        config.root_cert = Some(self.authority.iter().map(|der| der.to_vec()).collect());
        config.proxy_url.clone_from(&self.proxy);
        config
    }

    /// Returns a client that authenticates with the token.
    pub(super) fn client(&self, token: &Token) -> anyhow::Result<Client> {
        let mut config = self.config();
        config.auth_info.token = Some(format!("{}.{}", token.id, token.secret).into());
        Ok(Client::try_from(config)?)
    }
}

pub(super) async fn discover(
    endpoint: &str,
    proxy: Option<http::Uri>,
    token: &Token,
    trusted_cas: &TrustedCas,
) -> anyhow::Result<ControlPlane> {
    let server: http::Uri = format!("https://{}", endpoint.trim_start_matches("https://"))
        .parse()
        .with_context(|| format!("invalid address {endpoint:?}: expected HOST:PORT"))?;
    let mut unverified_config = Config::new(server.clone());
    // This response is trusted only if it is signed with the token.
    unverified_config.accept_invalid_certs = true;
    unverified_config.proxy_url.clone_from(&proxy);
    let cluster_info = read_cluster_info(&Client::try_from(unverified_config)?, endpoint).await?;
    let text = signed_kubeconfig(&cluster_info, token)?;
    let authority = trusted_authority(text, trusted_cas)?;
    let control_plane = ControlPlane { server, authority, proxy };
    let verified_info = read_cluster_info(&Client::try_from(control_plane.config())?, endpoint).await?;
    ensure!(
        signed_kubeconfig(&verified_info, token)? == text,
        "the cluster-info of {endpoint} differs over a verified connection; the first connection may have been intercepted"
    );
    Ok(control_plane)
}

async fn read_cluster_info(client: &Client, endpoint: &str) -> anyhow::Result<ConfigMap> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
    maps.get("cluster-info")
        .await
        .map_err(|error| anyhow!("cannot read the cluster-info of {endpoint}: {}", describe_cause(&error)))
}

/// The kubeconfig in `cluster-info`, if its signature is valid.
fn signed_kubeconfig<'m>(cluster_info: &'m ConfigMap, token: &Token) -> anyhow::Result<&'m str> {
    let field = |name: &str| cluster_info.data.as_ref().and_then(|data| data.get(name)).map(String::as_str);
    let text = field("kubeconfig").context("the cluster-info has no kubeconfig")?;
    let signature = field(&format!("jws-kubeconfig-{}", token.id));
    let signature = signature.with_context(|| {
        format!(
            "the cluster-info is not signed with token {}, which may have expired; create another with `crowsnest token create`",
            token.id
        )
    })?;
    ensure!(
        is_valid_signature(signature, text, token),
        "the signature of the cluster-info is invalid: wrong token or wrong control plane"
    );
    Ok(text)
}

/// Verifies a JWS with detached payload (HS256).
fn is_valid_signature(signature: &str, text: &str, token: &Token) -> bool {
    let Some((header, tag)) = signature.split_once("..") else { return false };
    let decoded_header = URL_SAFE_NO_PAD
        .decode(header)
        .ok()
        .and_then(|header| serde_json::from_slice::<serde_json::Value>(&header).ok());
    let Ok(tag) = URL_SAFE_NO_PAD.decode(tag) else { return false };
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(text));
    decoded_header.is_some_and(|header| header["alg"] == "HS256" && header["kid"] == token.id)
        && hmac::verify(&key, message.as_bytes(), &tag).is_ok()
}

/// The CA certificates of a kubeconfig, if one of them is trusted.
fn trusted_authority(text: &str, trusted_cas: &TrustedCas) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let kubeconfig = Kubeconfig::from_yaml(text).context("cannot parse the kubeconfig in the cluster-info")?;
    let cluster = kubeconfig.clusters.first().and_then(|named| named.cluster.as_ref());
    let encoded = cluster.and_then(|cluster| cluster.certificate_authority_data.as_deref());
    let pem = STANDARD
        .decode(encoded.context("the cluster-info has no CA certificate")?)
        .context("the CA certificate is not valid base64")?;
    let authority: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().context("cannot parse the CA certificate")?;
    let TrustedCas::Hashes(trusted_cas) = trusted_cas else { return Ok(authority) };
    for der in &authority {
        let (_, certificate) = X509Certificate::from_der(der).context("cannot parse the CA certificate")?;
        let hash = digest(&SHA256, certificate.tbs_certificate.subject_pki.raw);
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if trusted_cas.iter().any(|pin| pin.0 == hash) {
            return Ok(authority);
        }
    }
    bail!("the CA of the control plane does not match --discovery-token-ca-cert-hash: wrong control plane")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    fn token() -> Token {
        "abcdef.0123456789abcdef".parse().unwrap()
    }

    fn cluster_info(text: &str, secret: &str) -> ConfigMap {
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","kid":"abcdef"}"#);
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let tag = hmac::sign(&key, format!("{header}.{}", URL_SAFE_NO_PAD.encode(text)).as_bytes());
        let signature = format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag));
        let data = [("kubeconfig", text), ("jws-kubeconfig-abcdef", &signature)];
        ConfigMap {
            data: Some(data.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()),
            ..ConfigMap::default()
        }
    }

    #[test]
    fn cluster_info_must_be_signed() {
        assert_eq!(signed_kubeconfig(&cluster_info("hello", "0123456789abcdef"), &token()).unwrap(), "hello");
        let error = signed_kubeconfig(&cluster_info("hello", "fedcba9876543210"), &token()).unwrap_err();
        assert!(error.to_string().contains("the signature of the cluster-info is invalid"), "{error}");
        let other: Token = "zyxwvu.0123456789abcdef".parse().unwrap();
        let error = signed_kubeconfig(&cluster_info("hello", "0123456789abcdef"), &other).unwrap_err();
        assert!(error.to_string().contains("is not signed with token zyxwvu"), "{error}");
        assert_eq!(format!("{other:?}"), "zyxwvu.…");
    }

    #[test]
    fn ca_hash_must_match() {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        let (_, parsed) = X509Certificate::from_der(certificate.der()).unwrap();
        let hash = digest(&SHA256, parsed.tbs_certificate.subject_pki.raw);
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let data = STANDARD.encode(certificate.pem());
        let text =
            format!("clusters:\n- name: ''\n  cluster: {{certificate-authority-data: {data}, server: 'https://cp'}}\n");
        let pin = |hash: &str| TrustedCas::Hashes(vec![format!("sha256:{hash}").parse().unwrap()]);
        assert_eq!(trusted_authority(&text, &pin(&hash)).unwrap().len(), 1);
        assert_eq!(trusted_authority(&text, &TrustedCas::Any).unwrap().len(), 1);
        let error = trusted_authority(&text, &pin(&"0".repeat(64))).unwrap_err();
        assert!(error.to_string().contains("wrong control plane"), "{error}");
    }

    #[rstest::rstest]
    #[case("abcdef", "expected a token of six letters")]
    #[case("ABCDEF.0123456789abcdef", "expected a token of six letters")]
    fn token_format_is_validated(#[case] text: &str, #[case] expected: &str) {
        assert!(text.parse::<Token>().unwrap_err().contains(expected));
        assert!("md5:00".parse::<CaHash>().unwrap_err().contains("invalid hash"));
    }
}
