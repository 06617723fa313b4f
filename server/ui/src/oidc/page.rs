//! Error page of a failed sign-in: the cause and the next step. Has no side effects.

use axum::response::Response;
use crowsnest_apiserver::authn::oidc::{ClaimError, IssuerError, OidcError, TokenError, format_error_chain};
use http::{HeaderValue, StatusCode, header};
use url::form_urlencoded::byte_serialize;

use super::LOGIN;
use super::exchange::ExchangeError;
use crowsnest_process::reply::Body;

/// Maximum length of an issuer's message; longer ones are truncated.
const MAX_MESSAGE_LENGTH: usize = 500;

const CHECK_FLAGS: &str =
    "The administrator of Crowsnest must check the flags --oidc-*: they do not match the identity provider.";
const TRY_LATER: &str = "Try again in a moment. If the problem persists, the administrator of Crowsnest must check --oidc-issuer-url and \
                     --oidc-ca-file, the address and the CA of the identity provider.";
pub(super) const SIGN_IN_AGAIN: &str = "Sign in again. Complete the sign-in in the same browser and at the same address, within \
                                    ten minutes, with cookies allowed.";

/// Reason why a sign-in fails.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SignInFailure {
    pub(super) status: StatusCode,
    pub(super) cause: String,
    pub(super) next_step: String,
}

impl SignInFailure {
    pub(super) fn new(status: StatusCode, cause: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self { status, cause: cause.into(), next_step: next_step.into() }
    }

    /// A failure reported by the issuer.
    pub(super) fn from_error_response(error: &str, description: Option<&str>) -> Self {
        let description = description.map(|text| format!(": {text}")).unwrap_or_default();
        let next_step = match error {
            "access_denied" => "Ask the administrator of the identity provider for access.",
            "login_required" | "interaction_required" | "consent_required" | "temporarily_unavailable" => SIGN_IN_AGAIN,
            _ => CHECK_FLAGS,
        };
        Self::new(StatusCode::FORBIDDEN, format!("The identity provider refused: {error}{description}"), next_step)
    }

    pub(super) fn from_exchange_error(error: &ExchangeError) -> Self {
        let next_step = match error {
            ExchangeError::Issuer(error) => return Self::from_issuer_error(error),
            ExchangeError::Status(_) => TRY_LATER,
            error if error.is_final() => SIGN_IN_AGAIN,
            _ => CHECK_FLAGS,
        };
        let cause = format!("The identity provider returned no tokens for this sign-in: {}", format_error_chain(error));
        Self::new(StatusCode::BAD_GATEWAY, cause, next_step)
    }

    /// A failure to reach the issuer or to use its metadata.
    pub(super) fn from_issuer_error(error: &IssuerError) -> Self {
        let cause = format!("Cannot connect to the identity provider: {}", format_error_chain(error));
        Self::new(StatusCode::BAD_GATEWAY, cause, TRY_LATER)
    }

    pub(super) fn from_token_error(error: &OidcError) -> Self {
        let next_step = match error {
            OidcError::Issuer(error) => return Self::from_issuer_error(error),
            OidcError::Token(TokenError::Expired(_) | TokenError::NotYetValid { .. }) => {
                "Sign in again. If the problem persists, the clocks of Crowsnest and of the identity provider differ."
            }
            OidcError::Token(TokenError::UnknownKey(_)) => {
                "Sign in again. If the problem persists, the identity provider signs with a key that it does not publish."
            }
            OidcError::Claims(ClaimError::EmailNotVerified) => {
                "Have the identity provider verify your email address, then sign in again."
            }
            _ => CHECK_FLAGS,
        };
        let cause = format!("The identity provider's token was rejected: {}", format_error_chain(error));
        Self::new(StatusCode::UNAUTHORIZED, cause, next_step)
    }

    /// Renders the page; `return_path` is the page to show after another sign-in.
    pub(super) fn page(&self, return_path: &str) -> Response<Body> {
        let return_path: String = byte_serialize(return_path.as_bytes()).collect();
        let cause: String = self.cause.chars().take(MAX_MESSAGE_LENGTH).collect();
        let page = include_str!("refused.html")
            .replace("{{again}}", &format!("{LOGIN}?return={return_path}"))
            .replace("{{next_step}}", &escape_html(&self.next_step))
            .replace("{{cause}}", &escape_html(&cause));
        let mut response = Response::new(Body::from(page));
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        response
    }
}

fn escape_html(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, letter| {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_of_the_issuer_are_escaped() {
        let failure = SignInFailure::from_error_response("<b>", Some("\"'&</p><script>{{again}}"));
        let response = failure.page("/search?q=a&b");
        assert_eq!(response.status(), 403);
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        let page = String::from_utf8(body.to_vec()).unwrap();
        assert!(page.contains("refused: &lt;b&gt;: &quot;&#39;&amp;&lt;/p&gt;&lt;script&gt;{{again}}"), "{page}");
        assert!(page.contains("href=\"/ui/oidc/login?return=%2Fsearch%3Fq%3Da%26b\""), "{page}");
    }

    #[test]
    fn failures_name_the_next_step() {
        let cases = [
            (
                SignInFailure::from_error_response("access_denied", None),
                "Ask the administrator of the identity provider",
            ),
            (SignInFailure::from_error_response("invalid_scope", None), "must check the flags --oidc-*"),
            (SignInFailure::from_token_error(&TokenError::Signature.into()), "must check the flags --oidc-*"),
            (SignInFailure::from_token_error(&TokenError::Expired("x".into()).into()), "the clocks of Crowsnest"),
            (SignInFailure::from_token_error(&ClaimError::EmailNotVerified.into()), "verify your email address"),
            (
                SignInFailure::from_exchange_error(&ExchangeError::Status(StatusCode::BAD_GATEWAY)),
                "Try again in a moment",
            ),
        ];
        for (failure, next_step) in cases {
            assert!(failure.next_step.contains(next_step), "{failure:?}");
        }
    }
}
