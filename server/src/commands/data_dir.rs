//! Flags of the data directory of a local control plane.

use std::path::PathBuf;

use clap::Args;
use crowsnest_cli::data_dir::default_data_dir;

use crowsnest_up::DataDirConfig;

#[derive(Debug, Clone, Args)]
pub(crate) struct DataDirArgs {
    /// Data directory [default: $XDG_DATA_HOME/crowsnest or ~/.local/share/crowsnest]
    #[arg(long, env = "CROWSNEST_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Delete the content of the data directory first
    #[arg(long)]
    reset: bool,
}

impl DataDirArgs {
    pub(crate) fn config(self) -> DataDirConfig {
        DataDirConfig { data_dir: self.data_dir.unwrap_or_else(default_data_dir), reset: self.reset }
    }
}
