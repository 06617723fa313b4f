//! Credentials of an engine: fixed ones, or a folder with the keys of a mounted Secret.

use super::error::ClientError;
use super::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Maximum size of a credential file in bytes.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Origin of the credentials.
#[derive(Debug, Clone)]
pub enum CredentialSource {
    Fixed(Credentials),
    /// A folder with any of the files `username` and `password`, `api-key`, `token`, `tls.crt` and `tls.key`, `ca.crt`: the
    /// keys of a Secret. It is read again while the client runs.
    Folder(PathBuf),
    /// Such a folder, if one is given, and a separate file with the trusted authorities in place of its `ca.crt`.
    Files {
        folder: Option<PathBuf>,
        ca: PathBuf,
    },
}

/// Authorization, client certificate and trusted authorities.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    pub authorization: Authorization,
    pub certificate: Option<ClientCertificate>,
    /// PEM bundle of the authorities trusted instead of the system's.
    pub ca: Option<String>,
}

/// The `Authorization` header of requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Authorization {
    #[default]
    None,
    Basic {
        username: String,
        password: Secret,
    },
    /// An Elasticsearch API key as the engine issues it: base64 of `id:key`.
    ApiKey(Secret),
    Bearer(Secret),
}

/// Certificate chain and private key, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    pub chain: String,
    pub key: Secret,
}

impl Authorization {
    /// Header value, marked sensitive. None without authorization.
    pub(super) fn header(&self) -> Result<Option<HeaderValue>, ClientError> {
        let text = match self {
            Self::None => return Ok(None),
            Self::Basic { username, password } => {
                format!("Basic {}", STANDARD.encode(format!("{username}:{}", password.expose())))
            }
            Self::ApiKey(key) => format!("ApiKey {}", key.expose()),
            Self::Bearer(token) => format!("Bearer {}", token.expose()),
        };
        let mut value = HeaderValue::from_str(&text).map_err(|_| {
            ClientError::Credentials("they contain a character that is not allowed in a header".to_owned())
        })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

impl CredentialSource {
    /// Reads the current credentials. Blocks on the file system.
    pub(super) fn read(&self) -> Result<Credentials, ClientError> {
        match self {
            Self::Fixed(credentials) => Ok(credentials.clone()),
            Self::Folder(folder) => Credentials::read(folder),
            Self::Files { folder, ca } => {
                let credentials = folder.as_deref().map(Credentials::read).transpose()?.unwrap_or_default();
                Ok(Credentials { ca: Some(read_path(ca)?.ok_or_else(|| missing_file_error(ca))?), ..credentials })
            }
        }
    }

    /// True if the credentials are files, which may change while the client runs.
    pub(super) fn can_change(&self) -> bool {
        matches!(self, Self::Folder(_) | Self::Files { .. })
    }
}

impl Credentials {
    /// Reads the files of a folder. Fails if they contradict each other, or if one half of a pair is missing.
    fn read(folder: &Path) -> Result<Self, ClientError> {
        let invalid_error = |what: &str| ClientError::Credentials(format!("{what} in {}", folder.display()));
        if !folder.is_dir() {
            return Err(ClientError::Credentials(format!("{} is not a folder", folder.display())));
        }
        let line = |name: &str| Ok::<_, ClientError>(read_file(folder, name)?.map(|text| text.trim().to_owned()));
        let basic = match (line("username")?, line("password")?) {
            (Some(username), Some(password)) => {
                Some(Authorization::Basic { username, password: Secret::new(password) })
            }
            (None, None) => None,
            _ => return Err(invalid_error("only one of username and password is")),
        };
        let api_key = line("api-key")?.map(|key| Authorization::ApiKey(Secret::new(key)));
        let bearer = line("token")?.map(|token| Authorization::Bearer(Secret::new(token)));
        let mut authorizations = [basic, api_key, bearer].into_iter().flatten();
        let authorization = authorizations.next().unwrap_or_default();
        if authorizations.next().is_some() {
            return Err(invalid_error("more than one of password, api-key and token is"));
        }
        let certificate = match (read_file(folder, "tls.crt")?, read_file(folder, "tls.key")?) {
            (Some(chain), Some(key)) => Some(ClientCertificate { chain, key: Secret::new(key) }),
            (None, None) => None,
            _ => return Err(invalid_error("only one of tls.crt and tls.key is")),
        };
        Ok(Self { authorization, certificate, ca: read_file(folder, "ca.crt")? })
    }
}

fn missing_file_error(path: &Path) -> ClientError {
    ClientError::Credentials(format!("there is no file {}", path.display()))
}

fn read_file(folder: &Path, name: &str) -> Result<Option<String>, ClientError> {
    read_path(&folder.join(name))
}

/// A file's text, or None if there is no such file. Errors name the path and never the content.
fn read_path(path: &Path) -> Result<Option<String>, ClientError> {
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    match read {
        Ok(bytes) if bytes as u64 > MAX_FILE_BYTES => {
            Err(ClientError::Credentials(format!("{} is larger than {MAX_FILE_BYTES} bytes", path.display())))
        }
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ClientError::CredentialFile { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[rstest]
    #[case::none(&[], None)]
    #[case::basic(&[("username", "crow"), ("password", "nest\n")], Some("Basic Y3JvdzpuZXN0"))]
    #[case::api_key(&[("api-key", "aWQ6a2V5\n")], Some("ApiKey aWQ6a2V5"))]
    #[case::bearer(&[("token", "abc")], Some("Bearer abc"))]
    fn keys_of_a_secret_are_read(#[case] files: &[(&str, &str)], #[case] header: Option<&str>) {
        let credentials = Credentials::read(folder(files).path()).unwrap();
        let value = credentials.authorization.header().unwrap();
        assert_eq!(value.as_ref().map(|value| value.to_str().unwrap()), header);
        assert!(value.is_none_or(|value| value.is_sensitive()));
    }

    #[rstest]
    #[case::half_basic(&[("username", "crow")], "only one of username and password")]
    #[case::half_certificate(&[("tls.crt", "x")], "only one of tls.crt and tls.key")]
    #[case::two(&[("api-key", "x"), ("token", "y")], "more than one of password, api-key and token")]
    fn contradictory_credentials_are_refused(#[case] files: &[(&str, &str)], #[case] message: &str) {
        let error = Credentials::read(folder(files).path()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn authorities_may_have_a_file_of_their_own() {
        let folder = folder(&[("token", "abc"), ("ca.crt", "one"), ("other.crt", "two")]);
        let read = |name: &str| {
            let source =
                CredentialSource::Files { folder: Some(folder.path().to_owned()), ca: folder.path().join(name) };
            source.read()
        };
        let credentials = read("other.crt").unwrap();
        assert_eq!(
            (credentials.ca.as_deref(), credentials.authorization),
            (Some("two"), Authorization::Bearer(Secret::new("abc")))
        );
        assert!(read("none.crt").unwrap_err().to_string().contains("none.crt"));
    }

    #[test]
    fn debug_output_and_errors_hide_secrets() {
        let files = [("username", "crow"), ("password", "s3cret\u{7}x"), ("tls.crt", "c"), ("tls.key", "k3y")];
        let credentials = Credentials::read(folder(&files).path()).unwrap();
        let text = format!("{credentials:?} {:?}", CredentialSource::Fixed(credentials.clone()));
        assert!(!text.contains("s3cret") && !text.contains("k3y"), "{text}");
        let bad = Authorization::Bearer(Secret::new("s3cret\n"));
        let error = bad.header().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }
}
