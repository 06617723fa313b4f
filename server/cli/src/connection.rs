//! Which control plane a command talks to: `--kubeconfig`, `$KUBECONFIG`, the default file, then the data directory of a local `up`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use crowsnest_component_base::kubeconfig;

#[derive(Debug, Args)]
pub struct ConnectionArgs {
    /// Kubeconfig of the control plane [default: $KUBECONFIG, then the running `crowsnest up`, then ~/.kube/config]
    #[arg(long, alias = "karmada-config", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, visible_alias = "karmada-context")]
    context: Option<String>,
    /// As this user
    #[arg(long = "as", alias = "karmada-as", value_name = "USER", hide_short_help = true)]
    as_user: Option<String>,
    /// As somebody of this group; may be repeated
    #[arg(
        long = "as-group",
        alias = "karmada-as-group",
        value_name = "GROUP",
        hide_short_help = true,
        requires = "as_user"
    )]
    as_groups: Vec<String>,
    /// As somebody with this UID
    #[arg(long = "as-uid", alias = "karmada-as-uid", value_name = "UID", hide_short_help = true, requires = "as_user")]
    as_uid: Option<String>,
    /// How long a server may say nothing, as 5s or 2m; 0 for as long as it likes
    #[arg(long, value_name = "DURATION", hide_short_help = true, value_parser = silence)]
    request_timeout: Option<Duration>,
}

/// How long a server may say nothing; a number alone is of seconds, as kubectl has it.
fn silence(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration such as 5s or 2m");
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    Duration::try_from(text.parse::<jiff::SignedDuration>().map_err(|_| wrong())?).map_err(|_| wrong())
}

/// The kubeconfig of a `crowsnest up` on this machine, where it has made one.
pub(crate) fn running() -> Option<PathBuf> {
    Some(crate::data_dir::default_data_dir().join("kubeconfigs/cp.kubeconfig")).filter(|path| path.is_file())
}

impl ConnectionArgs {
    /// What flags say that were read otherwise.
    pub fn of(kubeconfig: Option<PathBuf>, context: Option<String>) -> Self {
        Self { kubeconfig, context, as_user: None, as_groups: Vec::new(), as_uid: None, request_timeout: None }
    }

    /// A client for the control plane.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        Ok(kube::Client::try_from(self.config().await?)?)
    }

    /// How the control plane is reached.
    pub async fn config(&self) -> anyhow::Result<kube::Config> {
        let path = self.kubeconfig.clone().or_else(|| match std::env::var_os("KUBECONFIG") {
            Some(_) => None,
            None => running(),
        });
        let found = kubeconfig::config(path.as_deref(), self.context.as_deref()).await;
        let config =
            found.context("no control plane: start one with `crowsnest up` or name a kubeconfig with --kubeconfig")?;
        Ok(self.applied(config))
    }

    /// As whom, and with which patience.
    fn applied(&self, mut config: kube::Config) -> kube::Config {
        // The client would ask again for minutes what is not served; whoever called is told at once.
        config.default_retry = false;
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
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Asked {
        #[command(flatten)]
        connection: ConnectionArgs,
    }

    fn applied(line: &str) -> Result<kube::Config, String> {
        let asked = Asked::try_parse_from(std::iter::once("x").chain(line.split_whitespace()));
        let config = kube::Config::new(http::Uri::from_static("https://cp"));
        asked.map(|asked| asked.connection.applied(config)).map_err(|error| error.to_string())
    }

    #[test]
    fn others_can_be_asked_as() {
        let config = applied("--karmada-as alice --as-group devs --as-group ops --as-uid 7").unwrap();
        assert_eq!(config.auth_info.impersonate_uid.as_deref(), Some("7"));
        assert_eq!(config.auth_info.impersonate.as_deref(), Some("alice"));
        assert_eq!(config.auth_info.impersonate_groups, Some(vec!["devs".to_owned(), "ops".to_owned()]));
        assert!(applied("--as-group devs").unwrap_err().contains("--as <USER>"));
    }

    #[rstest::rstest]
    #[case("--request-timeout 5s", Some(5))]
    #[case("--request-timeout=90", Some(90))]
    fn patience_can_be_said(#[case] line: &str, #[case] expected: Option<u64>) {
        assert_eq!(applied(line).unwrap().read_timeout, expected.map(Duration::from_secs));
        let unsaid = applied("").unwrap();
        assert_eq!(applied("--request-timeout 0").unwrap().read_timeout, unsaid.read_timeout);
        assert!(applied("--request-timeout soon").unwrap_err().contains("is no duration such as 5s"));
    }
}
