//! Selects the control plane that a command connects to: `--kubeconfig`, `$KUBECONFIG`, the kubeconfig of a local
//! `crowsnest up`, then `~/.kube/config`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use crowsnest_component_base::{kubeconfig, user_agent};

#[derive(Debug, Args)]
pub struct ConnectionArgs {
    /// Kubeconfig file of the control plane [default: $KUBECONFIG, then the running `crowsnest up`, then
    /// ~/.kube/config]
    #[arg(long, alias = "karmada-config", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Kubeconfig context to use [default: the current context]
    #[arg(long, visible_alias = "karmada-context")]
    context: Option<String>,
    /// User to impersonate
    #[arg(long = "as", alias = "karmada-as", value_name = "USER", hide_short_help = true)]
    as_user: Option<String>,
    /// Group to impersonate; may be repeated
    #[arg(
        long = "as-group",
        alias = "karmada-as-group",
        value_name = "GROUP",
        hide_short_help = true,
        requires = "as_user"
    )]
    as_groups: Vec<String>,
    /// UID to impersonate
    #[arg(long = "as-uid", alias = "karmada-as-uid", value_name = "UID", hide_short_help = true, requires = "as_user")]
    as_uid: Option<String>,
    /// Time to wait for a server to connect or send data, such as 5s or 2m; 0 means no limit
    #[arg(long, value_name = "DURATION", hide_short_help = true, value_parser = parse_request_timeout)]
    request_timeout: Option<Duration>,
}

/// Parses `--request-timeout`; a bare number is in seconds, as in kubectl.
fn parse_request_timeout(text: &str) -> Result<Duration, String> {
    let invalid = || format!("invalid duration {text:?}: expected a value such as 5s or 2m");
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    Duration::try_from(text.parse::<jiff::SignedDuration>().map_err(|_| invalid())?).map_err(|_| invalid())
}

/// The kubeconfig of the local `crowsnest up`, if that file exists.
pub(crate) fn local_kubeconfig() -> Option<PathBuf> {
    Some(crate::data_dir::default_data_dir().join("kubeconfigs/cp.kubeconfig")).filter(|path| path.is_file())
}

impl ConnectionArgs {
    /// Connection arguments with only a kubeconfig and a context, for verbs that parse these two flags themselves.
    pub fn new(kubeconfig: Option<PathBuf>, context: Option<String>) -> Self {
        Self { kubeconfig, context, as_user: None, as_groups: Vec::new(), as_uid: None, request_timeout: None }
    }

    /// A client for the control plane.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        Ok(kube::Client::try_from(self.load_config().await?)?)
    }

    /// Loads the kubeconfig and applies the impersonation and timeout flags.
    pub async fn load_config(&self) -> anyhow::Result<kube::Config> {
        let path = self.kubeconfig.clone().or_else(|| match std::env::var_os("KUBECONFIG") {
            Some(_) => None,
            None => local_kubeconfig(),
        });
        let config = kubeconfig::load_config(path.as_deref(), self.context.as_deref()).await;
        let config = config.context(
            "cannot find a control plane; start one with `crowsnest up`, or name a kubeconfig with --kubeconfig",
        )?;
        Ok(self.apply_flags(config))
    }

    /// Applies impersonation, the request timeout and the User-Agent to a configuration, and disables retries.
    fn apply_flags(&self, mut config: kube::Config) -> kube::Config {
        // The client would retry for minutes before it returned an error.
        config.default_retry = false;
        user_agent::set_in_config(&mut config);
        if let Some(user) = &self.as_user {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups = Some(self.as_groups.clone()).filter(|groups| !groups.is_empty());
            config.auth_info.impersonate_uid = self.as_uid.clone();
        }
        if let Some(timeout) = self.request_timeout.filter(|timeout| !timeout.is_zero()) {
            config.read_timeout = Some(timeout);
            config.reset_reader_on_write = true;
            config.connect_timeout = Some(timeout);
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parse_args;

    fn config_from(line: &str) -> Result<kube::Config, String> {
        let args: ConnectionArgs = parse_args(line)?;
        let config = kube::Config::new(http::Uri::from_static("https://cp"));
        Ok(args.apply_flags(config))
    }

    #[test]
    fn impersonation_flags_set_the_identity() {
        let config = config_from("--karmada-as alice --as-group devs --as-group ops --as-uid 7").unwrap();
        assert_eq!(config.auth_info.impersonate_uid.as_deref(), Some("7"));
        assert_eq!(config.auth_info.impersonate.as_deref(), Some("alice"));
        assert_eq!(config.auth_info.impersonate_groups, Some(vec!["devs".to_owned(), "ops".to_owned()]));
        assert!(config_from("--as-group devs").unwrap_err().contains("--as <USER>"));
    }

    #[rstest::rstest]
    #[case("--request-timeout 5s", Some(5))]
    #[case("--request-timeout=90", Some(90))]
    fn request_timeout_sets_the_read_timeout(#[case] line: &str, #[case] expected: Option<u64>) {
        assert_eq!(config_from(line).unwrap().read_timeout, expected.map(Duration::from_secs));
        let default = config_from("").unwrap();
        assert_eq!(config_from("--request-timeout 0").unwrap().read_timeout, default.read_timeout);
        assert!(config_from("--request-timeout soon").unwrap_err().contains("expected a value such as 5s"));
    }
}
