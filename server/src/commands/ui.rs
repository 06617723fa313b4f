//! Flags of the web UI, shared by the commands that serve it.

use std::path::PathBuf;

use clap::Args;

use crate::reload::Reloader;
use crate::ui::Seal;
use crate::up::datadir::DataDir;

/// Name of the key file's flag, for the reloader.
const FLAG: &str = "ui-session-key-file";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Web UI")]
pub(crate) struct UiArgs {
    /// Host name of a proxy in front of the UI's plain HTTP; may be repeated. localhost and IP addresses always are
    #[arg(long, env = "CROWSNEST_UI_HOST", value_delimiter = ',', value_name = "NAME")]
    pub(crate) ui_host: Vec<String>,
    /// Key of the UI's cookies, which replicas share: the first line seals, each opens [default: made in the data directory]
    #[arg(long, env = "CROWSNEST_UI_SESSION_KEY_FILE", value_name = "FILE")]
    ui_session_key_file: Option<PathBuf>,
}

impl UiArgs {
    /// Cookie keys; those of a file are reloaded when it changes.
    pub(crate) async fn seal(&self, dir: &DataDir, reloader: &mut Reloader) -> anyhow::Result<Seal> {
        let Some(file) = &self.ui_session_key_file else { return Seal::of_data_dir(dir) };
        let seal = Seal::read(file)?;
        let shown = seal.clone();
        let replace = move |read: &[String]| Ok(shown.replace(read.first().map_or("", String::as_str))?);
        reloader.watch(FLAG, vec![file.clone()], replace).await?;
        Ok(seal)
    }
}
