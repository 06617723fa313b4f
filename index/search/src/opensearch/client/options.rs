//! Options of the connection to an engine, and the addresses of its nodes.

use super::credentials::CredentialSource;
use super::error::ClientError;
use super::secret::Secret;
use crowsnest_apimachinery::addresses::local_kind_of_host;
use crowsnest_store::OpenSearchOptions;
use reqwest::Url;
use std::time::Duration;

/// Settings of the connection to an engine.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Nodes of one engine.
    pub hosts: Vec<Address>,
    pub credentials: CredentialSource,
    pub proxy: ProxyChoice,
    /// Allows nodes with loopback, link-local, unspecified and multicast addresses, and names that resolve to one of these.
    /// False if users of the control plane choose the addresses.
    pub allow_local_addresses: bool,
    /// Timeout of the TCP and TLS handshakes.
    pub connect_timeout: Duration,
    /// Timeout of a request to one node, including the response.
    pub request_timeout: Duration,
    /// Maximum size of a response after decompression, in bytes.
    pub max_response_bytes: usize,
    /// Minimum size of request bodies that are compressed with gzip; None disables compression.
    pub min_compressed_bytes: Option<usize>,
    /// Interval at which credential files are read again. A response with status 401 causes this immediately.
    pub credentials_interval: Duration,
}

/// Proxy between the client and the nodes.
#[derive(Debug, Clone, Default)]
pub enum ProxyChoice {
    /// `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`.
    #[default]
    Environment,
    Direct,
    /// One proxy for all requests. Its URL may contain a user and a password.
    Url(Secret),
}

/// Base URL of a node: `http` or `https`, without user, query and fragment; a path is kept as prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address(Url);

impl ClientOptions {
    /// Options for the engine that the cache's configuration names.
    pub fn from_store_options(engine: &OpenSearchOptions) -> Result<Self, ClientError> {
        let client = Self::new(Address::parse_all(engine.urls.iter().map(String::as_str))?);
        let credentials = match (&engine.credentials_dir, &engine.ca_file) {
            (None, None) => client.credentials,
            (Some(folder), None) => CredentialSource::Folder(folder.clone()),
            (folder, Some(ca)) => CredentialSource::Files { folder: folder.clone(), ca: ca.clone() },
        };
        Ok(Self { credentials, ..client })
    }

    /// Defaults for these nodes, without credentials.
    pub fn new(hosts: Vec<Address>) -> Self {
        Self {
            hosts,
            credentials: CredentialSource::Fixed(super::Credentials::default()),
            proxy: ProxyChoice::default(),
            allow_local_addresses: true,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            max_response_bytes: 64 << 20,
            min_compressed_bytes: Some(1024),
            credentials_interval: Duration::from_secs(10),
        }
    }
}

impl Address {
    /// Checks the form of a node's URL. The error does not repeat it.
    pub fn check(url: &str) -> Result<(), &'static str> {
        match Self::parse_all([url]) {
            Ok(_) => Ok(()),
            Err(ClientError::Address { problem, .. }) => Err(problem),
            Err(_) => Err("is not a URL"),
        }
    }

    /// Parses the configured addresses. Errors give the index of an address but not its text, which may contain a password.
    pub fn parse_all<'a>(addresses: impl IntoIterator<Item = &'a str>) -> Result<Vec<Self>, ClientError> {
        let parsed: Vec<Self> = addresses
            .into_iter()
            .enumerate()
            .map(|(index, text)| Self::parse(index, text))
            .collect::<Result<_, _>>()?;
        if parsed.is_empty() { Err(ClientError::NoHosts) } else { Ok(parsed) }
    }

    fn parse(index: usize, text: &str) -> Result<Self, ClientError> {
        let address_error = |problem| ClientError::Address { index, problem };
        let url = Url::parse(text.trim()).map_err(|_| address_error("is not a URL"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(address_error("is neither http nor https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(address_error("contains a user or password; put them into the credentials"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(address_error("has a query or fragment"));
        }
        Ok(Self(url))
    }

    /// Kind of a local address ("loopback", "link-local", …). None for names that have to be resolved.
    pub(super) fn local_kind(&self) -> Option<&'static str> {
        local_kind_of_host(self.0.host_str()?)
    }

    /// The URL of a path, which begins with a slash, and a query.
    pub(super) fn join(&self, path_and_query: &str) -> Option<Url> {
        Url::parse(&format!("{}{path_and_query}", self.0.as_str().trim_end_matches('/'))).ok()
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://search:9200", "https://search:9200/_bulk?a=b")]
    #[case(" http://[::1]:9200/ ", "http://[::1]:9200/_bulk?a=b")]
    #[case("https://host/engine/", "https://host/engine/_bulk?a=b")]
    fn addresses_are_joined_with_paths(#[case] address: &str, #[case] url: &str) {
        let addresses = Address::parse_all([address]).unwrap();
        assert_eq!(addresses[0].join("/_bulk?a=b").unwrap().as_str(), url);
    }

    #[rstest]
    #[case("search:9200")]
    #[case("ftp://host")]
    #[case("https://u:s3cret@host")]
    #[case("https://host?s3cret")]
    #[case("https://host:s3cret")]
    fn invalid_addresses_are_refused_without_quoting_them(#[case] address: &str) {
        let error = Address::parse_all(["https://host", address]).unwrap_err();
        assert!(error.to_string().starts_with("address 1 of"), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }

    #[test]
    fn an_address_is_required() {
        assert!(matches!(Address::parse_all([]), Err(ClientError::NoHosts)));
    }
}
