//! The kubeconfigs of a local fleet: one per cluster, and one with a context for each.

use std::path::{Path, PathBuf};

use anyhow::Context;
use kube::config::Kubeconfig;

use crowsnest_process::data_dir::write_private;

/// Collects kubeconfigs and writes them to one folder.
pub(super) struct Kubeconfigs {
    folder: PathBuf,
    fleet: Kubeconfig,
}

impl Kubeconfigs {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, fleet: Kubeconfig::default() }
    }

    /// Writes `<name>.kubeconfig` and adds its context, renamed to `name`, to the fleet's kubeconfig.
    pub(super) fn add(&mut self, name: &str, yaml: &str) -> anyhow::Result<Kubeconfig> {
        let mut config =
            Kubeconfig::from_yaml(yaml).with_context(|| format!("cannot parse the kubeconfig of {name}"))?;
        for cluster in &mut config.clusters {
            cluster.name = name.to_owned();
        }
        for user in &mut config.auth_infos {
            user.name = name.to_owned();
        }
        for context in &mut config.contexts {
            context.name = name.to_owned();
            if let Some(context) = &mut context.context {
                context.cluster = name.to_owned();
                context.user = Some(name.to_owned());
            }
        }
        config.current_context = Some(name.to_owned());
        write(&self.folder.join(format!("{name}.kubeconfig")), &config)?;
        self.fleet.clusters.extend(config.clusters.iter().cloned());
        self.fleet.auth_infos.extend(config.auth_infos.iter().cloned());
        self.fleet.contexts.extend(config.contexts.iter().cloned());
        if self.fleet.current_context.is_none() {
            self.fleet.current_context = Some(name.to_owned());
        }
        Ok(config)
    }

    /// Writes `fleet.kubeconfig` and returns its path.
    pub(super) fn finish(self) -> anyhow::Result<PathBuf> {
        let path = self.folder.join("fleet.kubeconfig");
        let fleet = Kubeconfig { api_version: Some("v1".into()), kind: Some("Config".into()), ..self.fleet };
        write(&path, &fleet)?;
        Ok(path)
    }
}

fn write(path: &Path, config: &Kubeconfig) -> anyhow::Result<()> {
    let text = serde_saphyr::to_string(config).context("cannot encode a kubeconfig")?;
    write_private(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}
