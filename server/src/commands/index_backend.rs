//! Flags of the text search backend, for commands that start a cache.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use clap::builder::PossibleValuesParser;
use crowsnest_index::{CacheOptions, OpenSearchOptions};
use crowsnest_search::opensearch::client::Address;

/// Maximum length of a prefix in bytes: index names are limited to 255 bytes, including a number.
const MAX_PREFIX_BYTES: usize = 200;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Search backend")]
pub(crate) struct IndexBackendArgs {
    /// Engine of text search: tantivy (in this process) or opensearch (OpenSearch or Elasticsearch)
    #[arg(long, alias = "backend", env = "CROWSNEST_INDEX_BACKEND", default_value = "tantivy", value_name = "NAME",
          value_parser = PossibleValuesParser::new(["tantivy", "opensearch"]))]
    index_backend: String,
    /// Base URL of a node of the OpenSearch or Elasticsearch cluster; may be repeated, or separated by commas
    #[arg(long, env = "CROWSNEST_OPENSEARCH_URL", value_name = "URL", value_delimiter = ',', value_parser = parse_url,
          required_if_eq("index_backend", "opensearch"))]
    opensearch_url: Vec<String>,
    /// CA file (PEM) for the nodes' certificates [default: the system's]
    #[arg(long, env = "CROWSNEST_OPENSEARCH_CA_FILE", value_name = "FILE", value_parser = parse_file)]
    opensearch_ca_file: Option<PathBuf>,
    /// Folder with the keys of a Secret: username and password, api-key, token, or tls.crt and tls.key; changes are
    /// reloaded
    #[arg(long, env = "CROWSNEST_OPENSEARCH_CREDENTIALS_DIR", value_name = "DIR", value_parser = parse_folder)]
    opensearch_credentials_dir: Option<PathBuf>,
    /// Alias to search, and prefix of the index names
    #[arg(long, env = "CROWSNEST_OPENSEARCH_INDEX_PREFIX", value_name = "NAME", default_value = "crowsnest",
          value_parser = parse_prefix)]
    opensearch_index_prefix: String,
    /// Number of primary shards; a change builds a new index beside the old one
    #[arg(long, env = "CROWSNEST_OPENSEARCH_SHARDS", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    opensearch_shards: u32,
    /// Number of replicas of each shard [default: 1 if there are several nodes]
    #[arg(long, env = "CROWSNEST_OPENSEARCH_REPLICAS", value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    opensearch_replicas: Option<u32>,
}

impl IndexBackendArgs {
    /// Rejects flags of a backend that is not selected.
    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        let given = [
            ("--opensearch-url", !self.opensearch_url.is_empty()),
            ("--opensearch-ca-file", self.opensearch_ca_file.is_some()),
            ("--opensearch-credentials-dir", self.opensearch_credentials_dir.is_some()),
            ("--opensearch-replicas", self.opensearch_replicas.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) if self.index_backend != "opensearch" => {
                bail!("{flag} is given, but --index-backend is {}; add --index-backend opensearch", self.index_backend)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn with_prefix(&self, prefix: String) -> Self {
        Self { opensearch_index_prefix: prefix, ..self.clone() }
    }

    /// Sets the backend in the options of a cache.
    pub(crate) fn apply(&self, options: &mut CacheOptions) {
        options.index_backend.clone_from(&self.index_backend);
        options.opensearch = OpenSearchOptions {
            urls: self.opensearch_url.clone(),
            ca_file: self.opensearch_ca_file.clone(),
            credentials_dir: self.opensearch_credentials_dir.clone(),
            index_prefix: self.opensearch_index_prefix.clone(),
            shards: self.opensearch_shards,
            replicas: self.opensearch_replicas,
        };
    }
}

fn parse_url(text: &str) -> Result<String, String> {
    match Address::check(text) {
        Ok(()) => Ok(text.trim().to_owned()),
        // The error omits the URL, which may contain a password.
        Err(error) => Err(format!("{error}; give it as https://HOST:9200")),
    }
}

fn parse_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_file() { Ok(path) } else { Err("no such file; mount the CA certificates there first".to_owned()) }
}

fn parse_folder(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_dir() { Ok(path) } else { Err("no such folder; mount the Secret there first".to_owned()) }
}

/// Validates an index name: lower case, and none of the names reserved by the engines.
fn parse_prefix(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    let begins_with_alphanumeric = text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    match begins_with_alphanumeric && text.chars().all(is_plain) && text.len() <= MAX_PREFIX_BYTES {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "not a name of lower-case letters, digits, dots, dashes and underscores that begins with a letter or digit, \
             of at most {MAX_PREFIX_BYTES} characters"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::parse_args;
    use rstest::rstest;

    fn parse(arguments: &str) -> Result<IndexBackendArgs, String> {
        parse_args(arguments)
    }

    #[test]
    fn flags_select_the_backend() {
        let mut options = CacheOptions::new("/missing");
        parse("").unwrap().apply(&mut options);
        assert_eq!(format!("{options:?}"), format!("{:?}", CacheOptions::new("/missing")));
        let flags = "--index-backend opensearch --opensearch-url https://a:9200 --opensearch-url http://b --opensearch-index-prefix fleet-1";
        parse(flags).unwrap().apply(&mut options);
        assert_eq!(options.index_backend, "opensearch");
        assert_eq!(options.opensearch.urls, ["https://a:9200", "http://b"]);
        assert_eq!(options.opensearch.index_prefix, "fleet-1");
    }

    #[rstest]
    #[case("--index-backend solr", "--index-backend")]
    #[case("--index-backend opensearch", "--opensearch-url <URL>")]
    #[case("--opensearch-url ftp://a", "is neither http nor https; give it as https://HOST:9200")]
    #[case("--opensearch-ca-file /missing/ca.crt", "--opensearch-ca-file <FILE>': no such file")]
    #[case("--opensearch-credentials-dir /missing", "--opensearch-credentials-dir <DIR>': no such folder")]
    #[case("--opensearch-index-prefix Fleet", "--opensearch-index-prefix <NAME>': not a name")]
    fn errors_name_the_flag(#[case] arguments: &str, #[case] expected: &str) {
        let error = parse(arguments).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn urls_without_the_backend_are_rejected() {
        let error = parse("--opensearch-url http://a:9200").unwrap().validate().unwrap_err().to_string();
        assert!(
            error.starts_with("--opensearch-url is given") && error.ends_with("--index-backend opensearch"),
            "{error}"
        );
        assert!(parse("--index-backend opensearch --opensearch-url http://a:9200").unwrap().validate().is_ok());
    }
}
