//! Flags of ID token authentication, named as kube-apiserver's, and of the UI's sign-in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use crowsnest_apiserver::authn::Oidc;
use crowsnest_apiserver::authn::oidc::{OidcFlags, Settings};
use url::Url;

use crowsnest_ui::oidc::SignInConfig;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "OpenID Connect")]
pub(crate) struct OidcArgs {
    /// URL of the issuer of ID tokens; must be https
    #[arg(long, env = "CROWSNEST_OIDC_ISSUER_URL", value_name = "URL")]
    oidc_issuer_url: Option<String>,
    /// Client id; tokens must be issued for it
    #[arg(long, env = "CROWSNEST_OIDC_CLIENT_ID", value_name = "ID")]
    oidc_client_id: Option<String>,
    /// Claim with the user name
    #[arg(long, env = "CROWSNEST_OIDC_USERNAME_CLAIM", value_name = "CLAIM", default_value = "sub")]
    oidc_username_claim: String,
    /// Prefix of user names; - for none [default: the issuer's URL and #, none for the claim email]
    #[arg(long, env = "CROWSNEST_OIDC_USERNAME_PREFIX", value_name = "PREFIX", allow_hyphen_values = true)]
    oidc_username_prefix: Option<String>,
    /// Claim with the user's groups, a string or a list of strings [default: none]
    #[arg(long, env = "CROWSNEST_OIDC_GROUPS_CLAIM", value_name = "CLAIM")]
    oidc_groups_claim: Option<String>,
    /// Prefix of groups
    #[arg(long, env = "CROWSNEST_OIDC_GROUPS_PREFIX", value_name = "PREFIX", allow_hyphen_values = true)]
    oidc_groups_prefix: Option<String>,
    /// Claim that must have this value; may be repeated, or separated by commas
    #[arg(long, env = "CROWSNEST_OIDC_REQUIRED_CLAIM", value_delimiter = ',', value_name = "KEY=VALUE", value_parser = parse_pair)]
    oidc_required_claim: Vec<(String, String)>,
    /// Accepted signing algorithms, separated by commas
    #[arg(long, env = "CROWSNEST_OIDC_SIGNING_ALGS", value_name = "ALGS")]
    #[arg(value_delimiter = ',', default_value = "RS256")]
    oidc_signing_algs: Vec<String>,
    /// CA file for the issuer's certificate [default: the system's]
    #[arg(long, env = "CROWSNEST_OIDC_CA_FILE", value_name = "FILE")]
    oidc_ca_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "OpenID Connect")]
pub(crate) struct SignInArgs {
    /// File with the client secret, read for each use [default: a public client without a secret]
    #[arg(long, env = "CROWSNEST_OIDC_CLIENT_SECRET_FILE", value_name = "FILE")]
    oidc_client_secret_file: Option<PathBuf>,
    /// Redirect URL that is registered with the issuer [default: http://<--ui-listen>/ui/oidc/callback]
    #[arg(long, env = "CROWSNEST_OIDC_REDIRECT_URL", value_name = "URL")]
    oidc_redirect_url: Option<Url>,
    /// Scopes that the UI requests in addition to openid, separated by commas
    #[arg(long, env = "CROWSNEST_OIDC_SCOPES", value_name = "SCOPES")]
    #[arg(value_delimiter = ',', default_value = "profile,email")]
    oidc_scopes: Vec<String>,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

impl OidcArgs {
    /// The token authenticator; `None` without an issuer.
    pub(crate) fn authenticator(&self) -> anyhow::Result<Option<Arc<Oidc>>> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let flags = OidcFlags {
            issuer_url: text(&self.oidc_issuer_url),
            client_id: text(&self.oidc_client_id),
            username_claim: self.oidc_username_claim.clone(),
            username_prefix: text(&self.oidc_username_prefix),
            groups_claim: text(&self.oidc_groups_claim),
            groups_prefix: text(&self.oidc_groups_prefix),
            required_claims: self.oidc_required_claim.iter().cloned().collect(),
            signing_algs: self.oidc_signing_algs.clone(),
        };
        let is_unset = flags.issuer_url.is_empty()
            && flags.client_id.is_empty()
            && flags.username_prefix.is_empty()
            && flags.groups_claim.is_empty()
            && flags.groups_prefix.is_empty()
            && flags.required_claims.is_empty()
            && self.oidc_ca_file.is_none();
        if is_unset {
            return Ok(None);
        }
        let settings = Settings::new(flags)?;
        let ca = match &self.oidc_ca_file {
            Some(path) => read_file(path, "--oidc-ca-file")?,
            None => String::new(),
        };
        Ok(Some(Arc::new(Oidc::new(settings, &ca)?)))
    }
}

impl SignInArgs {
    pub(crate) fn config(&self) -> SignInConfig {
        SignInConfig {
            secret_file: self.oidc_client_secret_file.clone(),
            redirect_url: self.oidc_redirect_url.clone(),
            scopes: self.oidc_scopes.clone(),
        }
    }
}

fn read_file(path: &Path, flag: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{flag} {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::parse_args;

    fn parse(args: &[&str]) -> OidcArgs {
        parse_args(&args.join(" ")).unwrap()
    }

    #[test]
    fn incomplete_issuers_are_rejected() {
        assert!(parse(&[]).authenticator().unwrap().is_none());
        let issuer = "--oidc-issuer-url=https://id.example.com";
        let cases: [(&[&str], &str); 5] = [
            (&[issuer], "--oidc-client-id is missing"),
            (&["--oidc-client-id=a"], "--oidc-issuer-url is missing"),
            (&["--oidc-username-prefix=-"], "--oidc-issuer-url is missing"),
            (&[issuer, "--oidc-client-id=a", "--oidc-signing-algs=RS256,none"], "none: unsupported signing alg"),
            (&[issuer, "--oidc-client-id=a", "--oidc-ca-file=/missing"], "--oidc-ca-file /missing"),
        ];
        for (args, expected) in cases {
            let error = format!("{:#}", parse(args).authenticator().unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        let good = parse(&[issuer, "--oidc-client-id=a", "--oidc-required-claim=hd=example.com"]);
        assert!(good.authenticator().unwrap().is_some());
        assert!(parse_args::<OidcArgs>("--oidc-required-claim=hd").is_err());
    }
}
