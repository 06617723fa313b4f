//! Which control plane a command talks to: `--kubeconfig`, `$KUBECONFIG`, the default file, then the data directory of a local `up`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};

#[derive(Debug, Args)]
pub(crate) struct ConnectionArgs {
    /// Kubeconfig of the control plane [default: $KUBECONFIG, then the running `crowsnest up`, then ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, visible_alias = "karmada-context")]
    context: Option<String>,
}

impl ConnectionArgs {
    /// What flags say that were read otherwise.
    pub(super) fn of(kubeconfig: Option<PathBuf>, context: Option<String>) -> Self {
        Self { kubeconfig, context }
    }

    /// A client for the control plane.
    pub(crate) async fn client(&self) -> anyhow::Result<kube::Client> {
        Ok(kube::Client::try_from(self.config().await?)?)
    }

    /// How the control plane is reached.
    pub(crate) async fn config(&self) -> anyhow::Result<kube::Config> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let path = self.kubeconfig.clone().or_else(|| match std::env::var_os("KUBECONFIG") {
            Some(_) => None,
            None => Some(crate::up::default_data_dir().join("kubeconfigs/cp.kubeconfig")).filter(|p| p.is_file()),
        });
        let found = match path {
            Some(path) => {
                let file = Kubeconfig::read_from(&path).with_context(|| format!("reading {}", path.display()))?;
                kube::Config::from_custom_kubeconfig(file, &options).await
            }
            None => kube::Config::from_kubeconfig(&options).await,
        };
        let mut config =
            found.context("no control plane: start one with `crowsnest up` or name a kubeconfig with --kubeconfig")?;
        // The client would ask again for minutes what is not served; whoever called is told at once.
        config.default_retry = false;
        Ok(config)
    }
}
