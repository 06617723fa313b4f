//! OpenID Connect: authenticates ID tokens of one issuer by the rules of kube-apiserver's `--oidc-*` flags.
//!
//! [`Oidc`] fetches and caches the issuer's keys. The registry's authenticator uses it for bearer tokens and the UI
//! for the tokens of a sign-in, so that both accept the same tokens.

mod claims;
mod issuer;
mod jose;
mod settings;

use std::fmt::Write;

use crowsnest_apimachinery::user::UserInfo;
use jiff::Timestamp;

pub use claims::{ClaimError, Claims, expiry};
pub use issuer::{Issuer, IssuerDocuments, IssuerError, Metadata};
pub use jose::{Algorithm, TokenError};
pub use settings::{OidcFlags, Settings, SettingsError};

/// Reason why an ID token is rejected, with the messages of kube-apiserver where it has one.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    #[error("authenticator not initialized")]
    Issuer(#[from] IssuerError),
    #[error("verify token")]
    Token(#[from] TokenError),
    #[error(transparent)]
    Claims(#[from] ClaimError),
}

/// Verifier of ID tokens of one issuer.
#[derive(Debug)]
pub struct Oidc {
    settings: Settings,
    issuer: Issuer,
}

impl Oidc {
    /// Creates a verifier without network access. `ca` is the issuer's certificate authority in PEM; empty means the
    /// system roots.
    pub fn new(settings: Settings, ca: &str) -> Result<Self, IssuerError> {
        let issuer = Issuer::new(settings.issuer_url(), ca)?;
        Ok(Self { settings, issuer })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The client of the issuer.
    pub fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// True if the unverified token names this issuer.
    pub fn is_issuer_of(&self, token: &str) -> bool {
        jose::unverified_issuer(token).is_some_and(|issuer| issuer == self.settings.issuer_url())
    }

    /// Verifies a token and returns its claims: signed by this issuer, issued for the configured client, and currently
    /// valid.
    pub async fn verify(&self, token: &str) -> Result<Claims, OidcError> {
        let token = jose::SignedToken::parse(token)?;
        let algorithm = self.settings.algorithm(token.algorithm())?;
        let mut documents = self.issuer.documents().await?;
        if !documents.keys.has_key(token.key_id()) {
            documents = self.issuer.refresh_documents(&documents).await?;
        }
        let claims = documents.keys.verify(&token, algorithm)?;
        claims::check_validity(&self.settings, &claims, Timestamp::now())?;
        Ok(claims)
    }

    /// The Kubernetes user that the claims identify.
    pub fn user(&self, claims: &Claims) -> Result<UserInfo, ClaimError> {
        claims::user(&self.settings, claims)
    }

    /// Authenticates a bearer token.
    pub async fn authenticate(&self, token: &str) -> Result<UserInfo, OidcError> {
        let claims = self.verify(token).await?;
        Ok(self.user(&claims)?)
    }
}

/// Formats an error and its causes in one line.
pub fn format_error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        // Writing to a string does not fail.
        let _ = write!(text, ": {next}");
        cause = next.source();
    }
    text
}
