//! Detects the distribution and version of a search server, and the media types of requests to it.

use super::error::ClientError;
use serde::Deserialize;
use std::fmt;

/// Servers that are supported, for messages.
pub const SUPPORTED: &str = "OpenSearch 2.19 or a newer 2.x, OpenSearch 3.x, Elasticsearch 7.17, 8.x or 9.x";

/// Distribution and version of a supported search server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    pub distribution: Distribution,
    pub version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    OpenSearch,
    Elasticsearch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

/// Name and version that the server reports about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedServer {
    pub distribution: String,
    pub version: String,
}

/// Content of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Json,
    /// Newline-delimited JSON of bulk requests.
    Lines,
}

#[derive(Deserialize)]
struct Root {
    version: RootVersion,
}

#[derive(Deserialize)]
struct RootVersion {
    number: String,
    distribution: Option<String>,
}

impl Server {
    /// Reads the response to `GET /`. `product` is the header `X-Elastic-Product`, which Elasticsearch has sent since 7.14.
    pub(super) fn parse(host: &str, body: &[u8], product: Option<&str>) -> Result<Self, ClientError> {
        let root: Root = serde_json::from_slice(body)
            .map_err(|source| ClientError::Unreadable { operation: "the request for its version", source })?;
        let RootVersion { number, distribution } = root.version;
        let version = Version::parse(&number);
        let supported = match (distribution.as_deref(), version) {
            (Some("opensearch"), Some(version))
                if version.major == 3 || (version.major == 2 && version.minor >= 19) =>
            {
                Some(Self { distribution: Distribution::OpenSearch, version })
            }
            (None, Some(version)) if matches!(version.major, 8 | 9) || (version.major == 7 && version.minor == 17) => {
                if product != Some("Elasticsearch") {
                    return Err(ClientError::NotElasticsearch { host: host.to_owned(), version: version.to_string() });
                }
                Some(Self { distribution: Distribution::Elasticsearch, version })
            }
            _ => None,
        };
        let found = || DetectedServer {
            distribution: distribution.unwrap_or_else(|| "elasticsearch".to_owned()).chars().take(32).collect(),
            version: number.chars().take(32).collect(),
        };
        supported.ok_or_else(|| ClientError::Unsupported(found()))
    }

    /// Media type of requests and responses. Elasticsearch 8 and 9 both respond in the format of version 8 on request.
    pub(super) fn media_type(server: Option<Self>, content: Content) -> &'static str {
        let has_compatible_types = server
            .is_some_and(|server| server.distribution == Distribution::Elasticsearch && server.version.major >= 8);
        match (content, has_compatible_types) {
            (Content::Json, false) => "application/json",
            (Content::Lines, false) => "application/x-ndjson",
            (Content::Json, true) => "application/vnd.elasticsearch+json;compatible-with=8",
            (Content::Lines, true) => "application/vnd.elasticsearch+x-ndjson;compatible-with=8",
        }
    }
}

impl Version {
    /// Parses `major.minor.patch`, and ignores a suffix such as `-SNAPSHOT`.
    fn parse(text: &str) -> Option<Self> {
        let release = text.split(['-', '+']).next()?;
        let mut numbers = release.split('.').map(|number| number.parse().ok());
        let version = Self { major: numbers.next()??, minor: numbers.next()??, patch: numbers.next()?? };
        numbers.next().is_none().then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.distribution {
            Distribution::OpenSearch => "OpenSearch",
            Distribution::Elasticsearch => "Elasticsearch",
        };
        write!(f, "{name} {}", self.version)
    }
}

impl fmt::Display for DetectedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.distribution, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(distribution: Option<&str>, number: &str, product: Option<&str>) -> Result<Server, ClientError> {
        let body = serde_json::json!({"name": "n", "version": {"distribution": distribution, "number": number}});
        Server::parse("http://one:9200", body.to_string().as_bytes(), product)
    }

    #[rstest]
    #[case(Some("opensearch"), "2.19.6", None, "OpenSearch 2.19.6")]
    #[case(Some("opensearch"), "2.20.0", None, "OpenSearch 2.20.0")]
    #[case(Some("opensearch"), "3.9.0-SNAPSHOT", None, "OpenSearch 3.9.0")]
    #[case(None, "7.17.28", Some("Elasticsearch"), "Elasticsearch 7.17.28")]
    #[case(None, "8.19.2", Some("Elasticsearch"), "Elasticsearch 8.19.2")]
    #[case(None, "9.1.0", Some("Elasticsearch"), "Elasticsearch 9.1.0")]
    fn supported_servers_are_detected(
        #[case] distribution: Option<&str>,
        #[case] number: &str,
        #[case] product: Option<&str>,
        #[case] name: &str,
    ) {
        assert_eq!(read(distribution, number, product).unwrap().to_string(), name);
    }

    #[rstest]
    #[case(Some("opensearch"), "2.18.0", None)]
    #[case(Some("opensearch"), "1.3.2", None)]
    #[case(Some("opensearch"), "4.0.0", None)]
    #[case(Some("other"), "3.0.0", None)]
    #[case(None, "7.10.2", None)]
    #[case(None, "6.8.0", Some("Elasticsearch"))]
    #[case(None, "10.0.0", Some("Elasticsearch"))]
    #[case(None, "unknown", Some("Elasticsearch"))]
    #[case(None, "8.0.0", None)]
    fn unsupported_servers_are_refused(
        #[case] distribution: Option<&str>,
        #[case] number: &str,
        #[case] product: Option<&str>,
    ) {
        let error = read(distribution, number, product).unwrap_err().to_string();
        assert!(error.contains(number) && error.contains(SUPPORTED), "{error}");
    }

    #[rstest]
    #[case(None, "application/json", "application/x-ndjson")]
    #[case(Some((Distribution::OpenSearch, 3)), "application/json", "application/x-ndjson")]
    #[case(Some((Distribution::Elasticsearch, 7)), "application/json", "application/x-ndjson")]
    #[case(
        Some((Distribution::Elasticsearch, 9)),
        "application/vnd.elasticsearch+json;compatible-with=8",
        "application/vnd.elasticsearch+x-ndjson;compatible-with=8"
    )]
    fn media_types_depend_on_the_server(
        #[case] server: Option<(Distribution, u32)>,
        #[case] json: &str,
        #[case] lines: &str,
    ) {
        let server =
            server.map(|(distribution, major)| Server { distribution, version: Version { major, minor: 0, patch: 0 } });
        assert_eq!(Server::media_type(server, Content::Json), json);
        assert_eq!(Server::media_type(server, Content::Lines), lines);
    }
}
