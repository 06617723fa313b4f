//! Members as separate processes: plain API servers, in which only propagated objects change.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use crowsnest_tests::Apiserver;
use kube::config::Kubeconfig;

use crate::crash::model::MEMBERS;

/// The running members. Killed when dropped.
pub struct Members {
    _servers: Vec<Apiserver>,
    kubeconfig: PathBuf,
}

impl Members {
    pub fn start(folder: &Path) -> Result<Self> {
        let kubeconfig = folder.join("members.kubeconfig");
        let mut servers = Vec::new();
        let mut all = Kubeconfig::default();
        for name in MEMBERS {
            let member = Apiserver::start(&folder.join(name)).with_context(|| format!("cannot start member {name}"))?;
            all = all.merge(rename_entries(Kubeconfig::read_from(&member.kubeconfig)?, name))?;
            servers.push(member);
        }
        fs::write(&kubeconfig, serde_json::to_vec_pretty(&all)?)?;
        Ok(Members { _servers: servers, kubeconfig })
    }

    /// Path of a kubeconfig with one context for each member, which has the member's name.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

/// Gives the cluster, user and context of a kubeconfig with one context the same name.
fn rename_entries(mut config: Kubeconfig, name: &str) -> Kubeconfig {
    config.clusters.iter_mut().for_each(|cluster| cluster.name = name.to_owned());
    config.auth_infos.iter_mut().for_each(|user| user.name = name.to_owned());
    for context in &mut config.contexts {
        context.name = name.to_owned();
        if let Some(context) = &mut context.context {
            context.cluster = name.to_owned();
            context.user = Some(name.to_owned());
        }
    }
    config.current_context = Some(name.to_owned());
    config
}
