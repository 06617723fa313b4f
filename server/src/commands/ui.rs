//! Flags of the web UI, shared by the commands that serve it.

use std::path::PathBuf;

use clap::Args;

use crowsnest_ui::UiConfig;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Web UI")]
pub(crate) struct UiArgs {
    /// Host name under which the UI accepts plain HTTP, such as that of a proxy in front of it; may be repeated.
    /// localhost and IP addresses are always accepted
    #[arg(long, env = "CROWSNEST_UI_HOST", value_delimiter = ',', value_name = "NAME")]
    ui_host: Vec<String>,
    /// File with the keys of the UI's cookies, shared by all replicas: the key in the first line encrypts, all keys
    /// decrypt
    /// [default: created in the data directory]
    #[arg(long, env = "CROWSNEST_UI_SESSION_KEY_FILE", value_name = "FILE")]
    ui_session_key_file: Option<PathBuf>,
}

impl UiArgs {
    pub(crate) fn config(&self) -> UiConfig {
        UiConfig { hosts: self.ui_host.clone(), session_key_file: self.ui_session_key_file.clone() }
    }
}
