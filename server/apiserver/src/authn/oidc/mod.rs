//! OpenID Connect: ID tokens of one issuer as bearer tokens, by the rules of kube-apiserver's `--oidc-*` flags.
//!
//! [`Oidc`] fetches and keeps what the issuer publishes. The registry's authenticator verifies bearer tokens with it, and the UI's sign-in
//! the tokens that it was given, so that both accept the same.

mod claims;
mod issuer;
mod jose;
mod settings;

use std::fmt::Write;

use crowsnest_apimachinery::user::UserInfo;
use jiff::Timestamp;

pub use claims::{ClaimError, Claims, expiry};
pub use issuer::{Issuer, IssuerError, Metadata, Published};
pub use jose::{Algorithm, TokenError};
pub use settings::{Given, Settings, SettingsError};

/// Why an ID token is not believed. Its words are kube-apiserver's where it has some.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    #[error("authenticator not initialized")]
    Issuer(#[from] IssuerError),
    #[error("verify token")]
    Token(#[from] TokenError),
    #[error(transparent)]
    Claims(#[from] ClaimError),
}

/// See the module.
#[derive(Debug)]
pub struct Oidc {
    settings: Settings,
    issuer: Issuer,
}

impl Oidc {
    /// `ca` vouches for the issuer (PEM); the system's authorities when empty. Nobody is asked yet.
    pub fn new(settings: Settings, ca: &str) -> Result<Self, IssuerError> {
        let issuer = Issuer::new(settings.issuer_url(), ca)?;
        Ok(Self { settings, issuer })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The issuer's own address and what it publishes there.
    pub fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// True of a token that says it is this issuer's. Nothing of it is proven.
    pub fn is_addressed(&self, token: &str) -> bool {
        jose::unproven_issuer(token).is_some_and(|issuer| issuer == self.settings.issuer_url())
    }

    /// The claims of a token that this issuer signed for our client, and that is good now.
    pub async fn verify(&self, token: &str) -> Result<Claims, OidcError> {
        let token = jose::SignedToken::parse(token)?;
        let algorithm = self.settings.algorithm(token.algorithm())?;
        let mut published = self.issuer.published().await?;
        if !published.keys.know(token.key_id()) {
            published = self.issuer.published_after(&published).await?;
        }
        let claims = published.keys.verify(&token, algorithm)?;
        claims::check(&self.settings, &claims, Timestamp::now())?;
        Ok(claims)
    }

    /// Who that is to Kubernetes.
    pub fn user(&self, claims: &Claims) -> Result<UserInfo, ClaimError> {
        claims::user(&self.settings, claims)
    }

    /// Whose a bearer token is.
    pub async fn authenticate(&self, token: &str) -> Result<UserInfo, OidcError> {
        let claims = self.verify(token).await?;
        Ok(self.user(&claims)?)
    }
}

/// An error with all of its causes in one line.
pub fn whole(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        // Writing to a string does not fail.
        let _ = write!(text, ": {next}");
        cause = next.source();
    }
    text
}
