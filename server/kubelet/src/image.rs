//! Simulated behavior of images: default commands, pages of web servers, and pull failures.

use super::shell::is_program;

/// Images whose default command is a shell, which exits immediately without a terminal.
const SHELL_IMAGES: &[&str] = &["alpine", "bash", "busybox", "debian", "fedora", "ubuntu"];
/// Web servers and their document roots.
const DOCUMENT_ROOTS: &[(&str, &str)] = &[("httpd", "/usr/local/apache2/htdocs"), ("nginx", "/usr/share/nginx/html")];
/// Kubernetes' test image, and its subcommand that writes log lines.
const AGNHOST: &str = "agnhost";
const LOGS_GENERATOR: &str = "logs-generator";
/// Image tags that cannot be pulled.
const MISSING_TAGS: &[&str] = &["404", "does-not-exist", "doesnotexist", "non-existent", "nonexistent"];
/// File name of the default page in a web server's image.
pub const DEFAULT_PAGE: &str = "index.html";

/// Kind of the program that listens on a container's ports, which determines its responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedServer {
    /// A page that describes the pod.
    Page,
    /// The pod's host name on every path (`agnhost serve-hostname`).
    ServeHostname,
    /// The pod's host name at `/hostname` (`agnhost netexec`).
    Netexec,
}

impl SimulatedServer {
    /// Returns the server of an image that is started with this first argument.
    pub fn from_image(image: &str, argument: Option<&str>) -> Self {
        match (repository(image), argument) {
            (AGNHOST, Some("serve-hostname")) => Self::ServeHostname,
            (AGNHOST, Some("netexec")) => Self::Netexec,
            _ => Self::Page,
        }
    }
}

/// The fields of a container that determine which process it runs.
#[derive(Debug, Clone, Copy)]
pub struct Invocation<'a> {
    pub image: &'a str,
    pub command: &'a [String],
    pub args: &'a [String],
    /// The container keeps stdin open (`stdin: true`).
    pub has_stdin: bool,
    /// The container is restarted after it has succeeded.
    pub restarts_always: bool,
}

/// Returns the last path component of an image name, without tag and digest: `busybox` for
/// `registry.k8s.io/e2e/busybox:1.36@sha256:…`.
pub fn repository(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    name.split(':').next().unwrap_or_default()
}

impl Invocation<'_> {
    /// Returns the command line if the simulated shell supports the program. `None` stands for any other program,
    /// which is assumed to run forever.
    ///
    /// Without a command, `args` belong to an unknown entrypoint, except for images whose default command is a
    /// shell. Such an image without a command exits immediately. In a pod that always restarts, which would never
    /// become available, it is assumed to be a placeholder that runs forever.
    pub fn command_line(&self) -> Option<Vec<String>> {
        if self.has_stdin {
            return None;
        }
        let is_shell = SHELL_IMAGES.contains(&repository(self.image));
        let words: Vec<String> = match (self.command, self.args) {
            ([], args)
                if args.first().is_some_and(|first| first == LOGS_GENERATOR) && repository(self.image) == AGNHOST =>
            {
                [&[AGNHOST.to_owned()][..], args].concat()
            }
            ([], []) if is_shell && !self.restarts_always => vec!["sh".into()],
            ([], args) if is_shell => args.to_vec(),
            ([], _) => Vec::new(),
            (command, args) => command.iter().chain(args).cloned().collect(),
        };
        words.first().is_some_and(|program| is_program(program)).then_some(words)
    }

    /// Returns true if the container's command is a program that the simulation does not support.
    pub fn runs_unknown_program(&self) -> bool {
        !self.has_stdin && !self.command.is_empty() && self.command_line().is_none()
    }
}

/// Returns the error of pulling an image that does not exist: its tag is one of `MISSING_TAGS`, or its registry
/// uses the reserved domain `.invalid` (RFC 2606).
pub fn pull_error(image: &str) -> Option<String> {
    let name = image.split('@').next().unwrap_or_default();
    let (path, last) = name.rsplit_once('/').unwrap_or(("", name));
    let tag = last.split_once(':').map_or("", |(_, tag)| tag);
    let host = path.split('/').next().unwrap_or_default().split(':').next().unwrap_or_default();
    let reference = format!("failed to pull and unpack image \"{image}\": failed to resolve reference \"{image}\"");
    if host.ends_with(".invalid") || host.starts_with("invalid.") {
        return Some(format!("{reference}: failed to do request: dial tcp: lookup {host}: no such host"));
    }
    MISSING_TAGS.contains(&tag).then(|| format!("{reference}: {image}: not found"))
}

/// Returns the document root of a web server's image, and `None` for other images.
pub fn document_root(image: &str) -> Option<&'static str> {
    let name = repository(image);
    DOCUMENT_ROOTS.iter().find(|(server, _)| *server == name).map(|(_, root)| *root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("busybox", "", "", false, Some("sh"))]
    #[case("busybox", "", "", true, None)]
    #[case("docker.io/library/busybox:1.36@sha256:00", "", "echo hi", true, Some("echo hi"))]
    #[case("registry:5000/team/app", "", "test", false, None)]
    #[case("registry.k8s.io/pause:3.10", "", "", false, None)]
    #[case("app", "sleep 10", "", true, Some("sleep 10"))]
    #[case("app", "/bin/sh -c", "true", true, Some("/bin/sh -c true"))]
    #[case("app", "/app/server", "--port 80", false, None)]
    #[case(
        "registry.k8s.io/e2e-test-images/agnhost:2.63",
        "",
        "logs-generator --log-lines-total 9",
        false,
        Some("agnhost logs-generator --log-lines-total 9")
    )]
    #[case("registry.k8s.io/e2e-test-images/agnhost:2.63", "", "pause", false, None)]
    fn supported_commands_have_a_command_line(
        #[case] image: &str,
        #[case] command: &str,
        #[case] args: &str,
        #[case] restarts_always: bool,
        #[case] expected: Option<&str>,
    ) {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (command, args) = (words(command), words(args));
        let invocation = Invocation { image, command: &command, args: &args, has_stdin: false, restarts_always };
        assert_eq!(invocation.command_line().map(|words| words.join(" ")).as_deref(), expected);
        assert_eq!(Invocation { has_stdin: true, ..invocation }.command_line(), None);
        assert_eq!(invocation.runs_unknown_program(), !command.is_empty() && expected.is_none());
    }

    #[rstest::rstest]
    #[case("nginx:404", true)]
    #[case("foo:non-existent", true)]
    #[case("invalid.registry.k8s.io/invalid/alpine:3.1", true)]
    #[case("registry.invalid:5000/a", true)]
    #[case("nginx:1.404", false)]
    #[case("localhost:404/nginx", false)]
    fn missing_images_cannot_be_pulled(#[case] image: &str, #[case] missing: bool) {
        assert_eq!(pull_error(image).is_some(), missing);
    }

    #[rstest::rstest]
    #[case("nginx", Some("/usr/share/nginx/html"))]
    #[case("registry.k8s.io/e2e-test-images/httpd:2.4.38-4", Some("/usr/local/apache2/htdocs"))]
    #[case("redis:7", None)]
    fn web_server_images_have_a_document_root(#[case] image: &str, #[case] root: Option<&str>) {
        assert_eq!(document_root(image), root);
    }
}
