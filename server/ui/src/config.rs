//! Configuration of the web UI.

use std::path::PathBuf;

use super::Seal;
use crowsnest_process::data_dir::DataDir;
use crowsnest_process::reload::Reloader;

/// Flag of the key file, which the reloader uses in messages and metrics.
const FLAG: &str = "ui-session-key-file";

/// Host names and cookie keys of the web UI.
#[derive(Debug, Clone)]
pub struct UiConfig {
    /// Host names of proxies in front of the UI's plain HTTP. localhost and IP addresses are always accepted.
    pub hosts: Vec<String>,
    /// File with the keys of the UI's cookies, shared by all replicas; `None` to create one in the data directory.
    pub session_key_file: Option<PathBuf>,
}

impl UiConfig {
    /// Reads or creates the cookie keys. A key file is reloaded when it changes.
    pub async fn load_seal(&self, dir: &DataDir, reloader: &mut Reloader) -> anyhow::Result<Seal> {
        let Some(file) = &self.session_key_file else { return Seal::from_data_dir(dir) };
        let seal = Seal::from_file(file)?;
        let reloaded_seal = seal.clone();
        let replace =
            move |contents: &[String]| Ok(reloaded_seal.replace(contents.first().map_or("", String::as_str))?);
        reloader.watch(FLAG, vec![file.clone()], replace).await?;
        Ok(seal)
    }
}
