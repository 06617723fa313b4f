//! Settings of the OIDC issuer and its claims: kube-apiserver's `--oidc-*` flags, validated. Has no side effects.

use std::collections::BTreeMap;

use url::Url;

use super::jose::{Algorithm, TokenError};
use crate::authn::token::ISSUER;

/// The flags, not yet validated; unset ones are empty.
#[derive(Debug, Clone, Default)]
pub struct OidcFlags {
    pub issuer_url: String,
    pub client_id: String,
    pub username_claim: String,
    pub username_prefix: String,
    pub groups_claim: String,
    pub groups_prefix: String,
    pub required_claims: BTreeMap<String, String>,
    pub signing_algs: Vec<String>,
}

/// Reason why the flags are invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error(
        "--oidc-issuer-url and --oidc-client-id must be specified together when any --oidc-* flags are set; {0} is missing"
    )]
    Missing(&'static str),
    #[error("--oidc-issuer-url {url:?}: {reason}")]
    IssuerUrl { url: String, reason: String },
    #[error(
        "--oidc-signing-algs {0}: unsupported signing alg, supported are {supported}",
        supported = Algorithm::NAMES.join(", ")
    )]
    Algorithm(String),
}

/// Validated settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    issuer_url: String,
    client_id: String,
    pub(super) username_claim: String,
    /// Prefix that is put before user names, with kube-apiserver's default resolved.
    pub(super) username_prefix: String,
    pub(super) groups_claim: String,
    pub(super) groups_prefix: String,
    pub(super) required_claims: BTreeMap<String, String>,
    algorithms: Vec<Algorithm>,
}

/// User names from this claim have no prefix by default and require `email_verified`.
pub(super) const EMAIL: &str = "email";

impl Settings {
    /// Validates flags and resolves the defaults of kube-apiserver.
    pub fn new(flags: OidcFlags) -> Result<Self, SettingsError> {
        if flags.issuer_url.is_empty() {
            return Err(SettingsError::Missing("--oidc-issuer-url"));
        }
        if flags.client_id.is_empty() {
            return Err(SettingsError::Missing("--oidc-client-id"));
        }
        check_issuer(&flags.issuer_url)
            .map_err(|reason| SettingsError::IssuerUrl { url: flags.issuer_url.clone(), reason })?;
        let claim = if flags.username_claim.is_empty() { "sub".to_owned() } else { flags.username_claim };
        let username_prefix = match flags.username_prefix.as_str() {
            "" if claim != EMAIL => format!("{}#", flags.issuer_url),
            "-" => String::new(),
            prefix => prefix.to_owned(),
        };
        let names = flags.signing_algs.iter().filter(|name| !name.is_empty());
        let algorithms = names
            .map(|name| Algorithm::from_name(name).ok_or_else(|| SettingsError::Algorithm(name.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            issuer_url: flags.issuer_url,
            client_id: flags.client_id,
            username_claim: claim,
            username_prefix,
            groups_claim: flags.groups_claim,
            groups_prefix: flags.groups_prefix,
            required_claims: flags.required_claims,
            algorithms: if algorithms.is_empty() { vec![Algorithm::Rs256] } else { algorithms },
        })
    }

    pub fn issuer_url(&self) -> &str {
        &self.issuer_url
    }

    /// Required audience of tokens.
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// The algorithm with this name, if it is accepted.
    pub(super) fn algorithm(&self, name: &str) -> Result<Algorithm, TokenError> {
        self.algorithms.iter().find(|algorithm| algorithm.name() == name).copied().ok_or_else(|| {
            let expected = self.algorithms.iter().map(|algorithm| algorithm.name()).collect();
            TokenError::Algorithm { expected, got: name.to_owned() }
        })
    }
}

fn check_issuer(text: &str) -> Result<(), String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let problem = match &url {
        url if url.scheme() != "https" => "URL scheme must be https",
        url if !url.username().is_empty() || url.password().is_some() => "URL must not contain a username or password",
        url if url.query().is_some() => "URL must not contain a query",
        url if url.fragment().is_some() => "URL must not contain a fragment",
        _ if text == ISSUER => "URL must not be the issuer of this server's own service account tokens",
        _ => return Ok(()),
    };
    Err(problem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_flags(issuer_url: &str, username_claim: &str, username_prefix: &str) -> OidcFlags {
        let text = str::to_owned;
        OidcFlags {
            issuer_url: text(issuer_url),
            client_id: "crowsnest".into(),
            username_claim: text(username_claim),
            username_prefix: text(username_prefix),
            ..OidcFlags::default()
        }
    }

    #[test]
    fn username_prefix_defaults_match_kube_apiserver() {
        const URL: &str = "https://id.example.com/realms/a";
        let cases = [
            ("", "", "https://id.example.com/realms/a#"),
            ("sub", "", "https://id.example.com/realms/a#"),
            ("name", "", "https://id.example.com/realms/a#"),
            ("email", "", ""),
            ("email", "oidc:", "oidc:"),
            ("sub", "oidc:", "oidc:"),
            ("sub", "-", ""),
            ("email", "-", ""),
        ];
        for (claim, prefix, expected) in cases {
            let settings = Settings::new(sample_flags(URL, claim, prefix)).unwrap();
            assert_eq!(settings.username_prefix, expected, "{claim} {prefix}");
        }
    }

    #[test]
    fn invalid_settings_are_rejected() {
        let issuer = |url: &str| Settings::new(sample_flags(url, "", ""));
        let cases = [
            (issuer("http://id.example.com"), "URL scheme must be https"),
            (issuer("id.example.com"), "relative URL without a base"),
            (issuer("https://a:b@id.example.com"), "must not contain a username or password"),
            (issuer("https://id.example.com?a=b"), "must not contain a query"),
            (issuer("https://id.example.com#a"), "must not contain a fragment"),
            (issuer("https://kubernetes.default.svc"), "own service account tokens"),
            (issuer(""), "--oidc-issuer-url is missing"),
            (
                Settings::new(OidcFlags { client_id: String::new(), ..sample_flags("https://a", "", "") }),
                "--oidc-client-id is missing",
            ),
            (
                Settings::new(OidcFlags { signing_algs: vec!["HS256".into()], ..sample_flags("https://a", "", "") }),
                "HS256: unsupported signing alg, supported are RS256",
            ),
        ];
        for (got, expected) in cases {
            let error = got.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn rs256_is_the_default_algorithm() {
        let settings = Settings::new(sample_flags("https://a", "", "")).unwrap();
        assert_eq!(settings.algorithm("RS256"), Ok(Algorithm::Rs256));
        assert!(settings.algorithm("ES256").is_err() && settings.algorithm("none").is_err());
        let flags =
            OidcFlags { signing_algs: vec!["ES256".into(), "PS384".into()], ..sample_flags("https://a", "", "") };
        let settings = Settings::new(flags).unwrap();
        assert_eq!(settings.algorithm("PS384"), Ok(Algorithm::Ps384));
        assert!(settings.algorithm("RS256").is_err());
    }
}
