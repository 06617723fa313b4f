//! A small OpenID provider: discovery, authorization with PKCE, single-use codes and refresh tokens, key rotation. It validates
//! requests as real providers do, and returns invalid responses on request ([`Fault`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair as CertificateKey};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub const CLIENT: &str = "crowsnest";
pub const SECRET: &str = "s3cret of+crowsnest";
const SUBJECT: &str = "u-1";

/// Error in the responses of the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Valid responses.
    #[default]
    None,
    /// The user denies access.
    Denied,
    /// The redirect has another `state`.
    State,
    /// The redirect has another `iss`.
    Issuer,
    /// The code belongs to another code challenge.
    Challenge,
    NoIdToken,
    Nonce,
    Audience,
    /// The ID token has another `iss`.
    IssuerClaim,
    Expired,
    /// The ID token is not valid yet (`nbf`).
    NotYet,
    /// Signed with an unpublished key.
    UnknownKey,
    /// Signed with another key than its `kid`.
    Signature,
    Unsigned,
    /// The groups claim is not a list.
    Groups,
    Subject,
}

struct Key {
    id: String,
    pair: EcdsaKeyPair,
}

impl Key {
    fn new(id: usize) -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).expect("a key");
        Self { id: format!("key-{id}"), pair }
    }

    fn public_jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..65]));
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id, "x": x, "y": y})
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).expect("a signature");
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// Parameters of an authorization request, which must match when its code is redeemed.
struct AuthorizationRequest {
    nonce: String,
    challenge: String,
}

struct Inner {
    issuer: String,
    redirect_uri: String,
    key: Key,
    /// Key that is not published.
    unpublished_key: Key,
    /// Number of the current key.
    key_number: usize,
    /// Lifetime of ID tokens in seconds.
    lifetime: i64,
    fault: Fault,
    codes: BTreeMap<String, AuthorizationRequest>,
    /// Valid refresh tokens.
    refresh_tokens: Vec<String>,
    /// All issued ID and refresh tokens.
    issued: Vec<String>,
    revoked: Vec<String>,
    /// Number of successful requests with a refresh token.
    renewals: usize,
    key_requests: usize,
}

#[derive(Clone)]
pub struct Provider(Arc<Mutex<Inner>>);

/// Generates an authority (PEM), and a certificate that it issued, with its key (both DER).
fn generate_certificate() -> Result<(String, Vec<u8>, Vec<u8>)> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = CertificateKey::generate()?;
    let ca = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let server_key = CertificateKey::generate()?;
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&server_key, &issuer)?;
    Ok((ca, certificate.der().to_vec(), server_key.serialize_der()))
}

/// TLS listener. Handshakes run concurrently, so that a slow one does not delay others.
struct TlsListener {
    address: SocketAddr,
    /// Connections with a completed handshake.
    connections: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl TlsListener {
    fn start(listener: TcpListener, acceptor: TlsAcceptor) -> Result<Self> {
        let address = listener.local_addr()?;
        let (sender, connections) = mpsc::channel(16);
        tokio::spawn(async move {
            while let Ok((socket, address)) = listener.accept().await {
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(socket).await {
                        // The task ends with the test.
                        let _ = sender.send((stream, address)).await;
                    }
                });
            }
        });
        Ok(Self { address, connections })
    }
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.connections.recv().await {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(self.address)
    }
}

impl Provider {
    /// Starts a provider, which serves until the runtime ends. Also returns the authority of its certificate (PEM).
    pub async fn start() -> Result<(Self, String)> {
        let (ca, certificate, key) = generate_certificate()?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
        let tls =
            rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate.into()], key)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let issuer = format!("https://{}/realms/fleet", listener.local_addr()?);
        let provider = Self(Arc::new(Mutex::new(Inner {
            issuer,
            redirect_uri: String::new(),
            key: Key::new(1),
            unpublished_key: Key::new(0),
            key_number: 1,
            lifetime: 3600,
            fault: Fault::None,
            codes: BTreeMap::new(),
            refresh_tokens: Vec::new(),
            issued: Vec::new(),
            revoked: Vec::new(),
            renewals: 0,
            key_requests: 0,
        })));
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/keys", get(keys))
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .route("/revoke", post(revoke))
            .route("/logout", get(|| async { "You are signed out." }))
            .with_state(provider.clone());
        let routes = Router::new().nest("/realms/fleet", routes);
        let connections = TlsListener::start(listener, TlsAcceptor::from(Arc::new(tls)))?;
        tokio::spawn(async move { axum::serve(connections, routes).await });
        Ok((provider, ca))
    }

    pub fn issuer(&self) -> String {
        self.0.lock().issuer.clone()
    }

    /// Registers the redirect URI of the client.
    pub fn register(&self, redirect_uri: &str) {
        self.0.lock().redirect_uri = redirect_uri.to_owned();
    }

    /// Sets the error of all further responses.
    pub fn set_fault(&self, fault: Fault) {
        self.0.lock().fault = fault;
    }

    /// Sets the lifetime of ID tokens in seconds.
    pub fn set_lifetime(&self, seconds: i64) {
        self.0.lock().lifetime = seconds;
    }

    /// Signs with a new key and publishes no other.
    pub fn rotate(&self) {
        let mut inner = self.0.lock();
        inner.key_number += 1;
        inner.key = Key::new(inner.key_number);
    }

    pub fn key_requests(&self) -> usize {
        self.0.lock().key_requests
    }

    pub fn renewals(&self) -> usize {
        self.0.lock().renewals
    }

    /// Invalidates all refresh tokens.
    pub fn invalidate_refresh_tokens(&self) {
        self.0.lock().refresh_tokens.clear();
    }

    pub fn issued_tokens(&self) -> Vec<String> {
        self.0.lock().issued.clone()
    }

    pub fn revoked_tokens(&self) -> Vec<String> {
        self.0.lock().revoked.clone()
    }

    /// An ID token as a login plugin of kubectl obtains it.
    pub fn id_token(&self, fault: Fault) -> String {
        let mut inner = self.0.lock();
        inner.fault = fault;
        let token = inner.id_token(None);
        inner.fault = Fault::None;
        token
    }
}

impl Inner {
    fn id_token(&mut self, nonce: Option<&str>) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let mut claims = json!({
            "iss": self.issuer, "aud": [CLIENT], "sub": SUBJECT, "iat": now, "exp": now + self.lifetime,
            "preferred_username": "alice", "groups": ["crew"], "email": "alice@example.com",
        });
        if let Some(nonce) = nonce {
            claims["nonce"] = nonce.into();
        }
        let mut header = json!({"alg": "ES256", "kid": self.key.id});
        match self.fault {
            Fault::Nonce => claims["nonce"] = "another".into(),
            Fault::Audience => claims["aud"] = json!(["another"]),
            Fault::IssuerClaim => claims["iss"] = "https://127.0.0.1/another".into(),
            Fault::Expired => claims["exp"] = (now - 1).into(),
            Fault::NotYet => claims["nbf"] = (now + 3600).into(),
            Fault::Groups => claims["groups"] = json!({"crew": true}),
            Fault::Subject => claims["sub"] = "u-2".into(),
            Fault::UnknownKey => header["kid"] = "key-0".into(),
            Fault::Unsigned => header["alg"] = "none".into(),
            _ => {}
        }
        let key =
            if matches!(self.fault, Fault::UnknownKey | Fault::Signature) { &self.unpublished_key } else { &self.key };
        let token = key.sign(&header, &claims);
        self.issued.push(token.clone());
        token
    }

    fn tokens(&mut self, nonce: Option<&str>) -> Value {
        let refresh_token = random_token();
        self.refresh_tokens.push(refresh_token.clone());
        self.issued.push(refresh_token.clone());
        let mut tokens = json!({
            "access_token": random_token(), "token_type": "Bearer", "expires_in": self.lifetime, "refresh_token": refresh_token,
        });
        if self.fault != Fault::NoIdToken {
            tokens["id_token"] = self.id_token(nonce).into();
        }
        tokens
    }
}

/// Random text for codes and opaque tokens.
fn random_token() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 24]>())
}

type Parameters = BTreeMap<String, String>;

async fn discovery(State(provider): State<Provider>) -> Json<Value> {
    let issuer = provider.issuer();
    let url = |path: &str| format!("{issuer}/{path}");
    Json(json!({
        "issuer": issuer, "jwks_uri": url("keys"), "authorization_endpoint": url("authorize"), "token_endpoint": url("token"),
        "revocation_endpoint": url("revoke"), "end_session_endpoint": url("logout"), "response_types_supported": ["code"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"],
        "code_challenge_methods_supported": ["S256"],
    }))
}

async fn keys(State(provider): State<Provider>) -> Json<Value> {
    let mut inner = provider.0.lock();
    inner.key_requests += 1;
    Json(json!({"keys": [inner.key.public_jwk()]}))
}

fn bad_request(error: &anyhow::Error) -> Response {
    (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response()
}

/// Authorization endpoint. The user alice is always signed in.
async fn authorize(State(provider): State<Provider>, Query(parameters): Query<Parameters>) -> Response {
    match authorization_redirect(&mut provider.0.lock(), &parameters) {
        Ok(location) => Redirect::to(&location).into_response(),
        Err(error) => bad_request(&error),
    }
}

/// Validates an authorization request; returns the redirect URI with the result.
fn authorization_redirect(inner: &mut Inner, parameters: &Parameters) -> Result<String> {
    let value = |name: &str| parameters.get(name).map(String::as_str).with_context(|| format!("no {name}"));
    ensure!(value("response_type")? == "code" && value("client_id")? == CLIENT, "{parameters:?}");
    ensure!(value("redirect_uri")? == inner.redirect_uri, "{parameters:?} but {}", inner.redirect_uri);
    ensure!(value("scope")? == "openid groups offline_access", "{parameters:?}");
    ensure!(value("code_challenge_method")? == "S256" && value("code_challenge")?.len() == 43, "{parameters:?}");
    ensure!(value("state")?.len() >= 43 && value("nonce")?.len() >= 43, "{parameters:?}");
    let state = if inner.fault == Fault::State { "another" } else { value("state")? };
    let issuer = if inner.fault == Fault::Issuer { "https://another.example.com" } else { &inner.issuer };
    let redirect = format!("{}?state={state}&iss={issuer}", inner.redirect_uri);
    if inner.fault == Fault::Denied {
        return Ok(format!("{redirect}&error=access_denied&error_description=%3Cb%3Enot+you%3C%2Fb%3E"));
    }
    let code = random_token();
    let challenge = if inner.fault == Fault::Challenge { "another" } else { value("code_challenge")? };
    let request = AuthorizationRequest { nonce: value("nonce")?.to_owned(), challenge: challenge.to_owned() };
    inner.codes.insert(code.clone(), request);
    Ok(format!("{redirect}&code={code}"))
}

/// True for the client's credentials: Basic authentication, both parts form-encoded (RFC 6749, section 2.3.1).
fn is_client(headers: &HeaderMap) -> bool {
    let id = CLIENT.to_owned();
    let expected =
        format!("Basic {}", STANDARD.encode(format!("{id}:{}", SECRET.replace('+', "%2B").replace(' ', "+"))));
    headers.get(http::header::AUTHORIZATION).is_some_and(|value| value == expected.as_str())
}

fn form(body: &str) -> Parameters {
    url::form_urlencoded::parse(body.as_bytes()).into_owned().collect()
}

fn token_error(error: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({"error": error, "error_description": "invalid request"}))).into_response()
}

async fn token(State(provider): State<Provider>, headers: HeaderMap, body: String) -> Response {
    let form = form(&body);
    let mut inner = provider.0.lock();
    let value = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
    if !is_client(&headers) {
        return token_error("invalid_client");
    }
    match value("grant_type") {
        "authorization_code" => {
            let Some(request) = inner.codes.remove(value("code")) else { return token_error("invalid_grant") };
            let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, value("code_verifier").as_bytes()));
            if challenge != request.challenge || value("redirect_uri") != inner.redirect_uri {
                return token_error("invalid_grant");
            }
            Json(inner.tokens(Some(&request.nonce))).into_response()
        }
        "refresh_token" => {
            let Some(at) = inner.refresh_tokens.iter().position(|token| token == value("refresh_token")) else {
                return token_error("invalid_grant");
            };
            inner.refresh_tokens.remove(at);
            inner.renewals += 1;
            Json(inner.tokens(None)).into_response()
        }
        _ => token_error("unsupported_grant_type"),
    }
}

async fn revoke(State(provider): State<Provider>, headers: HeaderMap, body: String) -> Response {
    if !is_client(&headers) {
        return token_error("invalid_client");
    }
    let token = form(&body).remove("token").unwrap_or_default();
    let mut inner = provider.0.lock();
    inner.refresh_tokens.retain(|valid| *valid != token);
    inner.revoked.push(token);
    StatusCode::OK.into_response()
}
