//! Default data directory of `crowsnest up`.

use std::path::PathBuf;

/// The default data directory of `crowsnest up` for the user of this process.
pub fn default_data_dir() -> PathBuf {
    default_path(std::env::var_os("XDG_DATA_HOME").map(Into::into), std::env::home_dir())
}

/// `$XDG_DATA_HOME/crowsnest`, else `~/.local/share/crowsnest`, else `./crowsnest-data`.
fn default_path(xdg_data_home: Option<PathBuf>, home: Option<PathBuf>) -> PathBuf {
    match (xdg_data_home, home) {
        (Some(data), _) if data.is_absolute() => data.join("crowsnest"),
        (_, Some(home)) => home.join(".local/share/crowsnest"),
        (_, None) => PathBuf::from("crowsnest-data"),
    }
}
