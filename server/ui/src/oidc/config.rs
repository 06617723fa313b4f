//! Configuration of the sign-in with an OpenID Connect issuer.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, bail};
use url::{Host, Url};

use super::{CALLBACK, Client};

/// Configuration of the OAuth 2.0 client that signs users in, except the client ID. Not validated yet.
#[derive(Debug, Clone, Default)]
pub struct SignInConfig {
    /// File with the client secret, read for each use; `None` for a public client.
    pub secret_file: Option<PathBuf>,
    /// Redirect URL that is registered at the issuer; `None` for the callback path at the UI's listen address.
    pub redirect_url: Option<Url>,
    /// Scopes to request in addition to `openid`.
    pub scopes: Vec<String>,
}

impl SignInConfig {
    /// Validates the configuration. Without a configured redirect URL, browsers must reach the UI at `ui_address`, the
    /// address that it listens on.
    pub fn build_client(&self, ui_address: SocketAddr) -> anyhow::Result<Client> {
        if let Some(path) = &self.secret_file {
            let flag = || format!("--oidc-client-secret-file {}", path.display());
            if std::fs::read_to_string(path).with_context(flag)?.trim().is_empty() {
                bail!("{}: the file is empty", flag());
            }
        }
        let redirect_url = match &self.redirect_url {
            Some(url) => url.clone(),
            None => Url::parse(&format!("http://{ui_address}{CALLBACK}"))?,
        };
        if let Some(problem) = redirect_url_problem(&redirect_url) {
            bail!("--oidc-redirect-url {redirect_url}: {problem}");
        }
        let additional = self.scopes.iter().map(|scope| scope.trim()).filter(|s| !s.is_empty() && *s != "openid");
        let scopes = std::iter::once("openid").chain(additional).map(str::to_owned).collect();
        Ok(Client { secret_file: self.secret_file.clone(), redirect_url, scopes })
    }
}

/// The reason that the redirect URL is invalid or insecure.
fn redirect_url_problem(url: &Url) -> Option<String> {
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    match url.scheme() {
        "https" => {}
        "http" if is_loopback => {}
        "http" => {
            return Some(
                "plain http is allowed for loopback addresses only; terminate TLS in front of the UI".to_owned(),
            );
        }
        _ => return Some("must be an https URL".to_owned()),
    }
    let has_only_path = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    (url.path() != CALLBACK || !has_only_path || url.password().is_some())
        .then(|| format!("must end with {CALLBACK}, without user name, password, query and fragment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_urls_are_validated() {
        let ui_address: SocketAddr = "127.0.0.1:7080".parse().unwrap();
        let scopes = ["groups", "openid", " offline_access"].map(str::to_owned).to_vec();
        let client = SignInConfig { scopes, ..SignInConfig::default() }.build_client(ui_address).unwrap();
        assert_eq!(client.redirect_url.as_str(), "http://127.0.0.1:7080/ui/oidc/callback");
        assert_eq!(client.scopes, ["openid", "groups", "offline_access"]);
        let cases = [
            ("https://fleet.example.com/ui/oidc/callback", None),
            ("http://localhost:7080/ui/oidc/callback", None),
            ("http://[::1]:7080/ui/oidc/callback", None),
            ("http://fleet.example.com/ui/oidc/callback", Some("plain http is allowed for loopback addresses only")),
            ("ftp://localhost/ui/oidc/callback", Some("must be an https URL")),
            ("https://fleet.example.com/", Some("must end with /ui/oidc/callback")),
            ("https://fleet.example.com/ui/oidc/callback?a=b", Some("must end with /ui/oidc/callback")),
        ];
        for (url, expected) in cases {
            let config = SignInConfig { redirect_url: Some(url.parse().unwrap()), ..SignInConfig::default() };
            let error = config.build_client(ui_address).err().map(|e| e.to_string());
            assert_eq!(error.is_some(), expected.is_some(), "{url} {error:?}");
            assert!(error.unwrap_or_default().contains(expected.unwrap_or_default()), "{url}");
        }
    }
}
