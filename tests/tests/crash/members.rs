//! Members in processes of their own: plain API servers, so that nothing but what is propagated happens in them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use crowsnest_tests::binary;
use kube::config::Kubeconfig;

use crate::model::MEMBERS;

/// Killed when dropped.
pub struct Members {
    running: Vec<Child>,
    kubeconfig: PathBuf,
}

impl Members {
    pub fn start(folder: &Path) -> Result<Self> {
        let kubeconfig = folder.join("members.kubeconfig");
        let mut members = Members { running: Vec::new(), kubeconfig };
        let mut all = Kubeconfig::default();
        for name in MEMBERS {
            let data = folder.join(name);
            members.running.push(start(&data).with_context(|| format!("starting member {name}"))?);
            let own = Kubeconfig::read_from(data.join("kubeconfigs/cp.kubeconfig"))?;
            all = all.merge(named(own, name))?;
        }
        fs::write(&members.kubeconfig, serde_json::to_vec_pretty(&all)?)?;
        Ok(members)
    }

    /// With a context for each, named like it.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for member in &mut self.running {
            // Nothing can be done about a child that is gone already.
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

/// Returns once it serves.
fn start(data: &Path) -> Result<Child> {
    let log = data.with_extension("log");
    let mut child = Command::new(binary()?)
        .args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log)?)
        .spawn()?;
    let out = child.stdout.take().context("no standard output")?;
    let mut first = String::new();
    BufReader::new(out).read_line(&mut first)?;
    if first.is_empty() {
        bail!("it ended with {}: {}", child.wait()?, fs::read_to_string(&log)?);
    }
    Ok(child)
}

/// Its only context under another name.
fn named(mut config: Kubeconfig, name: &str) -> Kubeconfig {
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
