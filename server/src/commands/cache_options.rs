//! Flags of the cache: retention, limits and exclusions.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::references::CustomRule;
use crowsnest_index::{CacheOptions, HistoryRetention};
use crowsnest_store::ingest::{IngestOptions, WithheldPath};

use super::index_backend::IndexBackendArgs;

/// Upper limit of durations: a year.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// Resources that are not collected by default.
const DEFAULT_EXCLUDED_RESOURCES: &str = "leases.coordination.k8s.io,events.events.k8s.io,componentstatuses";

/// Minimum of `--cache-object-bytes`: the approximate size limit of an object in etcd.
const MIN_OBJECT_BYTES: u64 = 2 << 20;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache")]
pub(crate) struct CacheOptionsArgs {
    /// Keep deleted objects and previous revisions for this long
    #[arg(long, env = "CROWSNEST_CACHE_HISTORY", default_value = "24h", value_name = "DURATION", value_parser = parse_duration)]
    cache_history: Duration,
    /// Maximum size of deleted objects and previous revisions in bytes; the oldest are deleted first
    #[arg(long, env = "CROWSNEST_CACHE_HISTORY_BYTES", default_value = "512Mi", value_name = "BYTES", value_parser = parse_bytes)]
    cache_history_bytes: u64,
    /// Maximum number of revisions per object; the last revision of as many generations is kept as well
    #[arg(long, env = "CROWSNEST_CACHE_VERSIONS", default_value_t = 10, value_name = "N")]
    cache_versions: u32,
    /// Database size in bytes above which previous revisions are deleted early [default: no limit]
    #[arg(long, env = "CROWSNEST_CACHE_BYTES", value_name = "BYTES", value_parser = parse_bytes)]
    cache_bytes: Option<u64>,
    /// Memory for objects between the members and the database, in bytes
    #[arg(long, env = "CROWSNEST_CACHE_BYTES_IN_FLIGHT", default_value = "32Mi", value_name = "BYTES", value_parser = parse_bytes)]
    cache_bytes_in_flight: u64,
    /// Maximum size of an object in bytes; larger ones are not cached
    #[arg(long, env = "CROWSNEST_CACHE_OBJECT_BYTES", default_value = "8Mi", value_name = "BYTES", value_parser = parse_object_bytes)]
    cache_object_bytes: u64,
    /// Resources to collect only if a ResourceRegistry selects them: resource.group, separated by commas
    #[arg(long, env = "CROWSNEST_CACHE_EXCLUDE", value_name = "RESOURCES", value_delimiter = ',', default_value = DEFAULT_EXCLUDED_RESOURCES)]
    cache_exclude: Vec<String>,
    /// Values to withhold in addition to those of Secrets (keys are kept): resource.group:path, separated by commas,
    /// such as configmaps:data. A change fills the cache again
    #[arg(long, env = "CROWSNEST_CACHE_WITHHOLD", value_name = "PATHS", value_delimiter = ',')]
    cache_withhold: Vec<WithheldPath>,
    /// YAML file with references of custom resources, which paths between objects follow
    #[arg(long, env = "CROWSNEST_CACHE_REFERENCES", value_name = "FILE", value_parser = read_references)]
    cache_references: Option<References>,
    /// Keep metadata.managedFields; objects become about a third larger
    #[arg(long, env = "CROWSNEST_CACHE_MANAGED_FIELDS")]
    cache_managed_fields: bool,
    /// Keep the values of Secrets; they are never searchable
    #[arg(long, env = "CROWSNEST_CACHE_SECRET_VALUES")]
    cache_secret_values: bool,
    #[command(flatten)]
    pub(crate) backend: IndexBackendArgs,
}

impl CacheOptionsArgs {
    /// The cache's options, with its files in `data_dir`.
    pub(crate) fn options(&self, data_dir: impl Into<PathBuf>) -> CacheOptions {
        let defaults = CacheOptions::new(data_dir);
        let to_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let in_flight = to_usize(self.cache_bytes_in_flight);
        let mut options = CacheOptions {
            history: HistoryRetention {
                max_age: self.cache_history,
                max_versions: self.cache_versions,
                max_bytes: self.cache_history_bytes,
                max_store_bytes: self.cache_bytes,
            },
            bytes_in_flight: in_flight,
            bytes_in_flight_per_cluster: defaults.bytes_in_flight_per_cluster.min(in_flight),
            max_object_bytes: to_usize(self.cache_object_bytes),
            excluded: self.cache_exclude.iter().filter(|resource| !resource.is_empty()).cloned().collect(),
            references: self.cache_references.iter().flat_map(|References(rules)| rules).cloned().collect(),
            ingest: IngestOptions {
                secret_values: self.cache_secret_values,
                managed_fields: self.cache_managed_fields,
                withheld: self.cache_withhold.clone(),
            },
            ..defaults
        };
        self.backend.apply(&mut options);
        options
    }

    /// The same options with another prefix of the OpenSearch indexes.
    pub(crate) fn with_index_prefix(&self, prefix: String) -> Self {
        Self { backend: self.backend.with_prefix(prefix), ..self.clone() }
    }
}

/// Rules for references, read from the file of `--cache-references`.
#[derive(Debug, Clone)]
struct References(Vec<CustomRule>);

fn read_references(path: &str) -> Result<References, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    serde_saphyr::from_str(&text).map(References).map_err(|error| format!("expected a list of references: {error}"))
}

pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration =
        text.parse().map_err(|_| format!("invalid duration {text:?}: expected a value such as 24h or 90m"))?;
    let duration = Duration::try_from(parsed).map_err(|_| "a duration cannot be negative".to_owned())?;
    if duration > MAX_DURATION { Err("at most a year (8784h)".to_owned()) } else { Ok(duration) }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let parsed =
        Quantity::parse(text).map_err(|_| format!("invalid size {text:?}: expected a value such as 512Mi or 2Gi"))?;
    if parsed.multiply(1000).value() % 1000 != 0 {
        return Err(format!(
            "invalid size {text:?}: fractions of bytes are not allowed; mebibytes are Mi, megabytes M"
        ));
    }
    u64::try_from(parsed.value()).map_err(|_| "a size cannot be negative".to_owned())
}

fn parse_object_bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        size if size < MIN_OBJECT_BYTES => {
            Err("must be at least 2Mi, because API servers store objects of that size".to_owned())
        }
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::parse_args;
    use rstest::rstest;

    fn options(arguments: &str) -> Result<CacheOptions, String> {
        parse_args(arguments).map(|args: CacheOptionsArgs| args.options("/missing"))
    }

    #[test]
    fn unset_flags_keep_the_defaults() {
        let (options, defaults) = (options("").unwrap(), CacheOptions::new("/missing"));
        assert_eq!(format!("{options:?}"), format!("{defaults:?}"));
    }

    #[test]
    fn flags_are_applied() {
        let options = options(
            "--cache-history 90m --cache-history-bytes 1Gi --cache-versions 3 --cache-bytes 4Gi \
            --cache-bytes-in-flight 1Mi --cache-exclude pods,events.events.k8s.io --cache-managed-fields --cache-withhold configmaps:data",
        );
        let options = options.unwrap();
        let history = HistoryRetention {
            max_age: Duration::from_secs(5400),
            max_versions: 3,
            max_bytes: 1 << 30,
            max_store_bytes: Some(4 << 30),
        };
        assert_eq!(
            (options.history, options.bytes_in_flight, options.bytes_in_flight_per_cluster),
            (history, 1 << 20, 1 << 20)
        );
        assert_eq!(options.excluded, ["pods", "events.events.k8s.io"]);
        let withheld = vec!["configmaps:data".parse().unwrap()];
        assert_eq!(options.ingest, IngestOptions { managed_fields: true, withheld, ..IngestOptions::default() });
    }

    #[test]
    fn references_are_read_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write("- {group: acme.io, kind: App, path: spec.database.name, target: {group: acme.io, kind: Database}}\n");
        let flag = format!("--cache-references {}", file.path().display());
        assert_eq!(options(&flag).unwrap().references[0].path, "spec.database.name");
        write("- {kind: App, field: x}\n");
        let error = options(&flag).unwrap_err();
        assert!(error.contains("expected a list of references"), "{error}");
    }

    #[rstest]
    #[case("--cache-references /missing/references.yaml", "No such file")]
    #[case("--cache-history yesterday", "expected a value such as 24h")]
    #[case("--cache-history=-1h", "cannot be negative")]
    #[case("--cache-history 9000h", "at most a year")]
    #[case("--cache-bytes plenty", "expected a value such as 512Mi")]
    #[case("--cache-bytes=-1", "cannot be negative")]
    #[case("--cache-bytes 512m", "mebibytes are Mi")]
    #[case("--cache-object-bytes 1Ki", "at least 2Mi")]
    #[case("--cache-withhold configmaps", "is not a path such as configmaps:data")]
    fn invalid_flags_are_rejected(#[case] arguments: &str, #[case] expected: &str) {
        let error = options(arguments).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
