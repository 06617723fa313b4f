//! Flags of `crowsnest serve`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use crowsnest_api::role::Role;
use crowsnest_cli::data_dir::default_data_dir;
use crowsnest_cli::examples;
use crowsnest_component_base::kubeconfig::KubeconfigContext;
use crowsnest_controllers::runtime;
use crowsnest_index::{CacheOptions, PostgresOptions, StoreOptions};

use super::api_args::WebhookArgs;
use super::cache_options;
use super::estimator::{ListenAddress, parse_listen_address};
use super::process::{PartArgs, ProcessArgs};
use crowsnest_process::serving::ProbeAddresses;
use crowsnest_runtime::leader_election::Timings;
use crowsnest_serve::{Config, LeaderElection};

/// A role in `--roles`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoleArg(Role);

impl ValueEnum for RoleArg {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self(Role::Aggregated),
            Self(Role::Webhook),
            Self(Role::Controllers),
            Self(Role::Cache),
            Self(Role::Ui),
            Self(Role::All),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self.0 {
            Role::Aggregated => ("aggregated", Some("Aggregated APIs, proxies and search; includes a cache")),
            Role::Webhook => ("webhook", Some("Admission and conversion webhooks")),
            Role::Controllers => {
                ("controllers", Some("Controllers, active in one process at a time; includes a cache"))
            }
            Role::Cache => ("cache", Some("Collect objects of members into the shared cache")),
            Role::Ui => ("ui", Some("Web UI")),
            Role::All => ("all", None),
        };
        Some(help.map_or_else(|| PossibleValue::new(name), |help| PossibleValue::new(name).help(help)))
    }
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        role.0
    }
}

/// Database URL of the cache. It may contain a password, so `Debug` does not print it.
#[derive(Clone)]
pub(crate) struct DatabaseUrl(String);

impl From<&str> for DatabaseUrl {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl DatabaseUrl {
    /// The URL for the environment of another process.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Store options, and the folder of a SQLite file outside of the data directory.
    pub(crate) fn store_options(&self) -> anyhow::Result<(StoreOptions, Option<PathBuf>)> {
        match self.0.split_once(':') {
            Some(("sqlite", "")) => Ok((StoreOptions::Sqlite, None)),
            Some(("sqlite", folder)) => Ok((StoreOptions::Sqlite, Some(folder.into()))),
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                Ok((StoreOptions::Postgres(PostgresOptions::new(self.0.as_str())), None))
            }
            _ => bail!("invalid --db: expected sqlite:, sqlite:FOLDER or postgres://user:password@host/database"),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseUrl(…)")
    }
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest serve --kubeconfig karmada-apiserver.config --db postgres://crowsnest@db/crowsnest",
    "crowsnest serve --config /etc/crowsnest/serve.yaml --roles webhook",
])]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
    /// Kubeconfig file of the control plane [default: the service account of this pod]
    #[arg(long, env = "CROWSNEST_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: its current context]
    #[arg(long, env = "CROWSNEST_CONTEXT", value_name = "NAME", requires = "kubeconfig")]
    pub(crate) context: Option<String>,
    /// Roles of this process, separated by commas
    #[arg(long, env = "CROWSNEST_ROLES", value_name = "ROLES")]
    #[arg(value_enum, value_delimiter = ',', default_value = "all")]
    pub(crate) roles: Vec<RoleArg>,
    /// Database of the cache: sqlite: for a single process, postgres://… for several
    #[arg(long, env = "CROWSNEST_DB", hide_env_values = true, default_value = "sqlite:", value_name = "URL")]
    pub(crate) db: DatabaseUrl,
    /// Maximum number of Postgres connections for reading
    #[arg(long, env = "CROWSNEST_DB_CONNECTIONS", default_value_t = 8, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) db_connections: u32,
    /// Folder of the text index, the audit log and, with sqlite:, the cache; one per process [default:
    /// $XDG_DATA_HOME/crowsnest-serve or ~/.local/share/crowsnest-serve]
    #[arg(long, env = "CROWSNEST_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Unique name of this process [default: the host name and a random suffix]
    #[arg(long, env = "CROWSNEST_REPLICA", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) replica: Option<String>,
    /// Address of the aggregated APIs and the webhooks
    #[arg(long, env = "CROWSNEST_LISTEN", default_value = "0.0.0.0:8443", value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// Certificate file of that address and of the UI [default: the certificate that `crowsnest install` created]
    #[arg(long, env = "CROWSNEST_TLS_CERT_FILE", value_name = "FILE", requires = "tls_private_key_file")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// Key file of that certificate
    #[arg(long, env = "CROWSNEST_TLS_PRIVATE_KEY_FILE", value_name = "FILE", requires = "tls_cert_file")]
    pub(crate) tls_private_key_file: Option<PathBuf>,
    /// Address of /metrics; 0 disables it
    #[arg(long, env = "CROWSNEST_METRICS_BIND_ADDRESS", value_name = "ADDRESS", default_value = ":8080", value_parser = parse_listen_address)]
    pub(crate) metrics_bind_address: ListenAddress,
    /// Address of /healthz, /livez and /readyz; 0 disables it
    #[arg(long, env = "CROWSNEST_HEALTH_PROBE_BIND_ADDRESS", value_name = "ADDRESS", default_value = ":10357",
          value_parser = parse_listen_address)]
    pub(crate) health_probe_bind_address: ListenAddress,
    /// Address of the web UI: HTTP on loopback, HTTPS otherwise; 0 disables it
    #[arg(long, env = "CROWSNEST_UI_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:7080", value_parser = parse_listen_address)]
    pub(crate) ui_listen: ListenAddress,
    /// Allow loopback and link-local addresses as endpoints and proxies of Clusters
    #[arg(long, env = "CROWSNEST_ALLOW_LOCAL_ENDPOINTS")]
    pub(crate) allow_local_endpoints: bool,
    /// Time to continue serving after a signal, while not ready, so that clients can move to other replicas
    #[arg(long, env = "CROWSNEST_SHUTDOWN_DELAY_DURATION", default_value = "0s", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    pub(crate) shutdown_delay_duration: Duration,
    #[command(flatten)]
    pub(crate) leader_election: LeaderElectionArgs,
    #[command(flatten)]
    pub(crate) webhooks: WebhookArgs,
    #[command(flatten)]
    pub(crate) parts: PartArgs,
}

/// Flags of leader election, named as those of Karmada's components.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Leader election")]
pub(crate) struct LeaderElectionArgs {
    /// Run the controllers only while this process holds their Leases; set to false only if no other process ever runs
    /// them
    #[arg(long, env = "CROWSNEST_LEADER_ELECT", num_args = 0..=1, require_equals = true, default_value = "true",
          default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) leader_elect: bool,
    /// Namespace of the Leases in the control plane
    #[arg(long, env = "CROWSNEST_LEADER_ELECT_RESOURCE_NAMESPACE", value_name = "NAMESPACE")]
    #[arg(default_value = "karmada-system")]
    pub(crate) leader_elect_resource_namespace: String,
    /// Time after the last renewal when another process may take over the Leases
    #[arg(long, env = "CROWSNEST_LEADER_ELECT_LEASE_DURATION", default_value = "15s", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    leader_elect_lease_duration: Duration,
    /// Time after the last renewal when the controllers of this process stop
    #[arg(long, env = "CROWSNEST_LEADER_ELECT_RENEW_DEADLINE", default_value = "10s", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    leader_elect_renew_deadline: Duration,
    /// Interval between attempts to acquire or renew the Leases
    #[arg(long, env = "CROWSNEST_LEADER_ELECT_RETRY_PERIOD", default_value = "2s", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    leader_elect_retry_period: Duration,
}

impl LeaderElectionArgs {
    fn config(self) -> LeaderElection {
        LeaderElection {
            is_enabled: self.leader_elect,
            namespace: self.leader_elect_resource_namespace,
            timings: Timings {
                lease_duration: self.leader_elect_lease_duration,
                renew_deadline: self.leader_elect_renew_deadline,
                retry_period: self.leader_elect_retry_period,
            },
        }
    }
}

impl ServeArgs {
    /// Options of the cache; an empty folder means the data directory.
    fn cache_options(&self, replica: &str) -> anyhow::Result<CacheOptions> {
        let (mut store, folder) = self.db.store_options()?;
        if let StoreOptions::Postgres(options) = &mut store {
            (options.connections, options.replica) = (self.db_connections, Some(replica.to_owned()));
        }
        self.parts.cache.backend.validate()?;
        Ok(CacheOptions { store, ..self.parts.cache.options(folder.unwrap_or_default()) })
    }

    fn config(self) -> anyhow::Result<Config> {
        let replica = self.replica.clone().unwrap_or_else(|| generate_replica_name(rand::random()));
        let cache = self.cache_options(&replica)?;
        Ok(Config {
            kubeconfig: KubeconfigContext::from_flags(self.kubeconfig, self.context),
            roles: self.roles.into_iter().map(Role::from).collect(),
            replica,
            data_dir: self.data_dir.unwrap_or_else(|| default_data_dir().with_file_name("crowsnest-serve")),
            cache,
            listen: self.listen,
            certificate: self.tls_cert_file.zip(self.tls_private_key_file),
            probe_addresses: ProbeAddresses {
                health: self.health_probe_bind_address.0,
                metrics: self.metrics_bind_address.0,
            },
            ui_listen: self.ui_listen.0,
            metrics_adapter: self.parts.adapter.metrics_adapter,
            allow_local_endpoints: self.allow_local_endpoints,
            shutdown_delay: self.shutdown_delay_duration,
            leader_election: self.leader_election.config(),
            controllers: self.parts.controllers.config(runtime::Config::default())?,
            api: self.parts.api.config(),
            webhook_clients: self.webhooks.config(),
            oidc: self.parts.oidc.authenticator()?,
            sign_in: self.parts.sign_in.config(),
            ui: self.parts.ui.config(),
        })
    }
}

/// A unique name for this process: host name and a random number.
fn generate_replica_name(random: u32) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{random:08x}", host.trim())
}

/// Serves until the process receives a signal.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    crowsnest_serve::run(args.config()?).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::parse_args;
    use rstest::rstest;

    fn parse(line: &str) -> Result<ServeArgs, String> {
        parse_args(line)
    }

    #[rstest]
    #[case("", true, true)]
    #[case("--roles webhook,ui", false, true)]
    #[case("--roles aggregated", true, false)]
    #[case("--roles cache", true, false)]
    fn roles_select_the_parts(#[case] line: &str, #[case] has_cache: bool, #[case] has_ui: bool) {
        let config = parse(line).unwrap().config().unwrap();
        assert_eq!((config.has_cache(), config.has_role(Role::Ui)), (has_cache, has_ui));
    }

    #[test]
    fn database_url_is_hidden() {
        let args = parse("--db postgres://me:open-sesame@db/crowsnest --db-connections 3").unwrap();
        assert!(!format!("{args:?}").contains("sesame"));
        let StoreOptions::Postgres(options) = args.cache_options("a-1").unwrap().store else { panic!("{:?}", args.db) };
        assert!(!format!("{options:?}").contains("sesame"));
        assert_eq!((options.connections, options.replica.as_deref()), (3, Some("a-1")));
    }

    #[rstest]
    #[case("sqlite:", "")]
    #[case("sqlite:/var/cache/crowsnest", "/var/cache/crowsnest")]
    fn sqlite_folder_is_parsed(#[case] db: &str, #[case] folder: &str) {
        let cache = parse(&format!("--db {db}")).unwrap().cache_options("a").unwrap();
        assert!(matches!(cache.store, StoreOptions::Sqlite));
        assert_eq!(cache.data_dir, PathBuf::from(folder));
    }

    #[rstest]
    #[case("--roles everything", "[possible values: aggregated, webhook, controllers, cache, ui, all]")]
    #[case("--tls-cert-file a.crt", "--tls-private-key-file")]
    #[case("--ui-listen invalid", "expected an address such as")]
    fn invalid_flags_are_rejected(#[case] line: &str, #[case] expected: &str) {
        let error = parse(line).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[rstest]
    #[case("mysql://me:open-sesame@db")]
    #[case("postgres:me:open-sesame@db")]
    #[case("open-sesame")]
    fn invalid_database_urls_are_rejected_and_hidden(#[case] db: &str) {
        let error = parse(&format!("--db {db}")).unwrap().cache_options("a").unwrap_err().to_string();
        assert!(error.starts_with("invalid --db: expected sqlite:") && !error.contains("sesame"), "{error}");
    }

    #[test]
    fn invalid_lease_times_are_rejected() {
        let validate = |line| parse(line).unwrap().config().unwrap().validate().map(drop);
        let error = validate("--leader-elect-renew-deadline 20s").unwrap_err();
        assert!(error.to_string().starts_with("--leader-elect-lease-duration must be longer"), "{error}");
        assert!(validate("").is_ok());
    }
}
