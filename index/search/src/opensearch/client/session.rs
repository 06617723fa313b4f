//! Connections with one set of credentials.

use super::credentials::{CredentialSource, Credentials};
use super::error::ClientError;
use super::options::{ClientOptions, ProxyChoice};
use super::resolver::RemoteOnlyResolver;
use http::HeaderValue;

/// Connection pool that trusts the CA of the credentials and presents their client certificate.
#[derive(Debug)]
pub(super) struct Session {
    pub credentials: Credentials,
    pub authorization: Option<HeaderValue>,
    pub http: reqwest::Client,
}

/// Reads the credentials on a blocking thread.
pub(super) async fn read(source: &CredentialSource) -> Result<Credentials, ClientError> {
    let source = source.clone();
    match tokio::task::spawn_blocking(move || source.read()).await {
        Ok(read) => read,
        Err(error) => Err(ClientError::Credentials(format!("the task that reads them failed: {error}"))),
    }
}

impl Session {
    pub fn new(options: &ClientOptions, credentials: Credentials) -> Result<Self, ClientError> {
        // Without a cryptography provider, building the client panics.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            return Err(ClientError::NoCryptography);
        }
        let setup = |part| move |source: reqwest::Error| ClientError::Setup { part, source: source.without_url() };
        let mut builder = reqwest::Client::builder()
            // Credentials must not be sent to other nodes than the configured ones.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(options.connect_timeout)
            .user_agent(concat!("crowsnest/", env!("CARGO_PKG_VERSION")));
        if !options.allow_local_addresses {
            builder = builder.dns_resolver(std::sync::Arc::new(RemoteOnlyResolver));
        }
        builder = match &options.proxy {
            ProxyChoice::Environment => builder,
            ProxyChoice::Direct => builder.no_proxy(),
            ProxyChoice::Url(url) => {
                builder.proxy(reqwest::Proxy::all(url.expose()).map_err(|_| ClientError::ProxyAddress)?)
            }
        };
        if let Some(ca) = &credentials.ca {
            let authorities = reqwest::Certificate::from_pem_bundle(ca.as_bytes()).map_err(setup("ca.crt"))?;
            if authorities.is_empty() {
                return Err(ClientError::Credentials("ca.crt contains no certificate".to_owned()));
            }
            builder = builder.tls_certs_only(authorities);
        }
        if let Some(certificate) = &credentials.certificate {
            let pem = format!("{}\n{}", certificate.chain, certificate.key.expose());
            let identity = reqwest::Identity::from_pem(pem.as_bytes()).map_err(setup("tls.crt and tls.key"))?;
            builder = builder.identity(identity);
        }
        let authorization = credentials.authorization.header()?;
        let http = builder.build().map_err(setup("TLS"))?;
        Ok(Self { credentials, authorization, http })
    }
}
