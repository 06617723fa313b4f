//! Configuration of the web UI.

use std::path::PathBuf;

use super::Seal;
use crowsnest_process::data_dir::DataDir;
use crowsnest_process::reload::Reloader;

/// Name of the key file's flag, for the reloader.
const FLAG: &str = "ui-session-key-file";

/// Host names and cookie keys of the web UI.
#[derive(Debug, Clone)]
pub struct UiConfig {
    /// Host names of proxies in front of the UI's plain HTTP. localhost and IP addresses are always accepted.
    pub hosts: Vec<String>,
    /// File of the keys of the UI's cookies, which replicas share; one is made in the data directory where there is none.
    pub session_key_file: Option<PathBuf>,
}

impl UiConfig {
    /// Cookie keys; those of a file are reloaded when it changes.
    pub async fn seal(&self, dir: &DataDir, reloader: &mut Reloader) -> anyhow::Result<Seal> {
        let Some(file) = &self.session_key_file else { return Seal::of_data_dir(dir) };
        let seal = Seal::read(file)?;
        let shown = seal.clone();
        let replace = move |read: &[String]| Ok(shown.replace(read.first().map_or("", String::as_str))?);
        reloader.watch(FLAG, vec![file.clone()], replace).await?;
        Ok(seal)
    }
}
