//! Direct requests to the issuer: exchanging a code for tokens, renewing tokens, revoking a refresh token.

use std::path::{Path, PathBuf};

use crowsnest_apiserver::authn::Oidc;
use crowsnest_apiserver::authn::oidc::{IssuerError, Metadata};
use http::{StatusCode, header};
use serde::Deserialize;
use url::form_urlencoded::{Serializer, byte_serialize};

use super::Client;

/// Response of the token endpoint. It must not be displayed or logged.
#[derive(Deserialize)]
pub(super) struct TokenResponse {
    pub(super) id_token: Option<String>,
    pub(super) refresh_token: Option<String>,
}

/// Error response of the token endpoint (RFC 6749, section 5.2).
#[derive(Deserialize)]
struct ErrorResponse {
    error: String,
    error_description: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error(transparent)]
    Issuer(#[from] IssuerError),
    #[error("the issuer's metadata has no {0}")]
    NoEndpoint(&'static str),
    #[error("--oidc-client-secret-file {path}")]
    Secret { path: PathBuf, source: std::io::Error },
    #[error("the issuer returned an error: {error}{description}")]
    Refused { error: String, description: String },
    #[error("the issuer's token endpoint returned status {0}")]
    Status(StatusCode),
    /// serde's own message may contain a token.
    #[error("cannot decode the response of the issuer's token endpoint")]
    Undecodable,
}

impl ExchangeError {
    /// True if the issuer has rejected the credential permanently.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Refused { error, .. } if error == "invalid_grant")
    }
}

/// Exchanges the code of a sign-in for tokens.
pub(super) async fn redeem(
    oidc: &Oidc,
    client: &Client,
    code: &str,
    verifier: &str,
) -> Result<TokenResponse, ExchangeError> {
    let form = [
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", client.redirect_url.as_str()),
        ("code_verifier", verifier),
    ];
    request_tokens(oidc, client, &form).await
}

/// Renews tokens with a refresh token.
pub(super) async fn renew(oidc: &Oidc, client: &Client, refresh_token: &str) -> Result<TokenResponse, ExchangeError> {
    request_tokens(oidc, client, &[("grant_type", "refresh_token"), ("refresh_token", refresh_token)]).await
}

async fn request_tokens(oidc: &Oidc, client: &Client, form: &[(&str, &str)]) -> Result<TokenResponse, ExchangeError> {
    let documents = oidc.issuer().documents().await?;
    let endpoint = documents.metadata.token_endpoint.as_deref();
    let endpoint = endpoint.ok_or(ExchangeError::NoEndpoint("token_endpoint"))?;
    let (status, body) = post(oidc, client, &documents.metadata, endpoint, form).await?;
    if status == StatusCode::OK {
        return serde_json::from_slice(&body).map_err(|_| ExchangeError::Undecodable);
    }
    match serde_json::from_slice::<ErrorResponse>(&body) {
        Ok(ErrorResponse { error, error_description }) => {
            let description = error_description.map(|text| format!(": {text}")).unwrap_or_default();
            Err(ExchangeError::Refused { error, description })
        }
        Err(_) => Err(ExchangeError::Status(status)),
    }
}

/// Revokes a refresh token if the issuer supports it (RFC 7009).
pub(super) async fn revoke(oidc: &Oidc, client: &Client, refresh_token: &str) -> Result<(), ExchangeError> {
    let documents = oidc.issuer().documents().await?;
    let Some(endpoint) = documents.metadata.revocation_endpoint.as_deref() else { return Ok(()) };
    let form = [("token", refresh_token), ("token_type_hint", "refresh_token")];
    match post(oidc, client, &documents.metadata, endpoint, &form).await? {
        (status, _) if status.is_success() => Ok(()),
        (status, _) => Err(ExchangeError::Status(status)),
    }
}

async fn post(
    oidc: &Oidc,
    client: &Client,
    metadata: &Metadata,
    endpoint: &str,
    form: &[(&str, &str)],
) -> Result<(StatusCode, Vec<u8>), ExchangeError> {
    let id = oidc.settings().client_id();
    let secret = match &client.secret_file {
        Some(path) => Some(read_secret(path).await?),
        None => None,
    };
    let mut request = oidc.issuer().http().post(endpoint).header(header::ACCEPT, "application/json");
    let body = match secret {
        Some(secret) if sends_secret_in_header(metadata) => {
            request = request.basic_auth(form_encode(id), Some(form_encode(&secret)));
            encode_form(form, &[])
        }
        Some(secret) => encode_form(form, &[("client_id", id), ("client_secret", &secret)]),
        None => encode_form(form, &[("client_id", id)]),
    };
    let request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
    Ok(oidc.issuer().send(endpoint, request).await?)
}

fn encode_form(form: &[(&str, &str)], credentials: &[(&str, &str)]) -> String {
    Serializer::new(String::new()).extend_pairs(form).extend_pairs(credentials).finish()
}

/// True for `client_secret_basic`, the default authentication method of clients; false if the issuer supports only
/// `client_secret_post`.
fn sends_secret_in_header(metadata: &Metadata) -> bool {
    let methods = metadata.token_endpoint_auth_methods_supported.as_deref().unwrap_or_default();
    let supports = |method: &str| methods.iter().any(|name| name == method);
    supports("client_secret_basic") || !supports("client_secret_post")
}

fn form_encode(text: &str) -> String {
    byte_serialize(text.as_bytes()).collect()
}

async fn read_secret(path: &Path) -> Result<String, ExchangeError> {
    let content = tokio::fs::read_to_string(path).await;
    let text = content.map_err(|source| ExchangeError::Secret { path: path.to_owned(), source })?;
    Ok(text.trim().to_owned())
}
