//! Output, exit codes and side effects of scripts.

use super::*;

/// A clock that does not advance.
struct FixedClock;

#[async_trait]
impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    async fn sleep(&self, _duration: Duration) {}
}

fn shell() -> Shell {
    let fs = FileSystem::new(FixedClock.now());
    for directory in ["/tmp", "/etc", "/root"] {
        fs.make_dir(directory, true, FixedClock.now()).unwrap();
    }
    fs.write("/etc/hostname", Bytes::from_static(b"web-0\n"), FixedClock.now()).unwrap();
    let identity = Identity { hostname: "web-0".into(), ip: "10.0.0.7".into(), ..Identity::default() };
    let env = [("HOME", "/root"), ("GREETING", "hello  world")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    Shell::new(Arc::new(fs), Arc::new(identity), Arc::new(FixedClock), env.into())
}

/// Runs a script and returns stdout, stderr and exit code.
async fn run(script: &str, stdin: &str) -> (String, String, i32) {
    let (out, err) = (Arc::new(CollectingSink::default()), Arc::new(CollectingSink::default()));
    let io = Stdio::new(Input::from_bytes(stdin.as_bytes()), out.clone(), err.clone());
    let code = shell().run_script(script, &io).await;
    let text = |output: Arc<CollectingSink>| String::from_utf8(output.take().to_vec()).unwrap();
    (text(out), text(err), code)
}

#[rstest::rstest]
#[case("echo hello   world", "hello world\n", 0)]
#[case("echo 'a  b' \"$GREETING\" $GREETING", "a  b hello  world hello world\n", 0)]
#[case("echo ${X:-def} ${GREETING:+set} ${#HOME}", "def set 5\n", 0)]
#[case("f=a.tar.gz; echo ${f%.gz} ${f#a.}", "a.tar tar.gz\n", 0)]
#[case("X=1 Y=$X; echo $X-$Y", "1-1\n", 0)]
#[case("true && echo yes || echo no", "yes\n", 0)]
#[case("false && echo yes || echo no", "no\n", 0)]
#[case("false; echo $?", "1\n", 0)]
#[case("(exit 3); echo $?; exit 4", "3\n", 4)]
#[case("! true; echo $?", "1\n", 0)]
#[case("for i in 1 2 3; do echo -n $i; done", "123", 0)]
#[case("i=0; while [ $i -lt 3 ]; do i=$((i+1)); echo $i; done | tail -n 1", "3\n", 0)]
#[case("while true; do echo x; break; done", "x\n", 0)]
#[case("while true; do echo y; done | head -n 2", "y\ny\n", 0)]
#[case("if [ -d /tmp ]; then echo dir; elif false; then :; else echo none; fi", "dir\n", 0)]
#[case("echo a > /tmp/f; echo b >> /tmp/f; cat /tmp/f; wc -l < /tmp/f", "a\nb\n2\n", 0)]
#[case("cd /tmp && pwd && cd - && pwd", "/tmp\n/\n", 0)]
#[case(
    "mkdir -p /tmp/d/e; touch /tmp/d/one.txt /tmp/d/two.md; cd /tmp/d; echo *.txt /tmp/d/*; ls",
    "one.txt /tmp/d/e /tmp/d/one.txt /tmp/d/two.md\ne\none.txt\ntwo.md\n",
    0
)]
#[case("echo \"$(hostname)\" `echo two`", "web-0 two\n", 0)]
#[case("nosuch 2>/dev/null; echo $?", "127\n", 0)]
#[case("nosuch 2>&1 | cat", "sh: nosuch: not found\n", 0)]
#[case("cat /none 2>&1", "cat: /none: No such file or directory\n", 1)]
#[case("sh -c 'echo $0 $1' zero one", "zero one\n", 0)]
#[case("printf '%s=%d\\n' a 1 b 2", "a=1\nb=2\n", 0)]
#[case("seq 3 | grep -v 2 | tr '\\n' ,", "1,3,", 0)]
#[case("set -e; false; echo not here", "", 1)]
#[case("date +%Y-%m-%d; id -u; sleep 1000", "2026-01-02\n0\n", 0)]
#[case("cat; echo end", "typed\nend\n", 0)]
#[case("read a b; echo $b-$a", "-typed\n", 0)]
#[case("test -f /etc/hostname; echo $?; test -f /none; echo $?", "0\n1\n", 0)]
#[case("tar cf - -C / etc | tar xf - -C /tmp; cat /tmp/etc/hostname", "web-0\n", 0)]
#[case("echo \\$HOME '$HOME' \"\\$HOME\"", "$HOME $HOME $HOME\n", 0)]
#[case("env A=1 printenv A", "1\n", 0)]
#[case("if [[ -r /none ]]\nthen\n  echo yes\nelse\n  touch /tmp/f\n  exit 3\nfi", "", 3)]
#[case("I=3; if [ $(expr ${I} % 2) -ne 0 ]; then exit 1; fi", "", 1)]
#[case("expr 2 \\* 3; expr 1 - 1; expr 1 +; echo $?", "6\n0\n2\n", 0)]
#[case("exit $(( $RANDOM / 32768 ))", "", 0)]
#[case("agnhost logs-generator --log-lines-total 7 --run-duration=2s | grep kube-system | wc -l", "3\n", 0)]
#[case("echo c; echo a; echo b # comment", "c\na\nb\n", 0)]
#[tokio::test]
async fn scripts_print_and_exit_as_in_a_real_shell(#[case] script: &str, #[case] expected: &str, #[case] code: i32) {
    let (out, err, status) = run(script, "typed\n").await;
    assert_eq!((out.as_str(), status), (expected, code), "stderr: {err}");
}

#[tokio::test]
async fn archives_preserve_names_modes_and_times() {
    let long = "x".repeat(150);
    let script = format!(
        "mkdir -p /src/{long}; echo one > /src/{long}/f; chmod 750 /src/{long}/f; cd /src; \
         tar cf /tmp/a.tar .; mkdir /dst; tar xf /tmp/a.tar -C /dst; ls -l /dst/{long}; tar tf /tmp/a.tar | wc -l"
    );
    let (out, err, _) = run(&script, "").await;
    assert_eq!(out, "-rwxr-x--- 1 root root         4 Jan  2 03:04 f\n3\n", "{err}");
}

#[rstest::rstest]
#[case("true", false)]
#[case("exit 7", false)]
#[case("curl http://x || exit 3", true)]
#[case("server & wait", true)]
#[tokio::test]
async fn unsupported_programs_and_syntax_are_reported(#[case] script: &str, #[case] expected: bool) {
    let mut shell = shell();
    let unknown = shell.unknown_commands();
    let discard: Output = Arc::new(DiscardingSink);
    shell.run_script(script, &Stdio::new(Input::empty(), discard.clone(), discard)).await;
    assert_eq!(unknown.was_used(), expected);
}

#[tokio::test]
async fn recursion_of_scripts_is_limited() {
    let (_, err, code) = run("echo 'sh /tmp/r' > /tmp/r; sh /tmp/r", "").await;
    assert_eq!(code, 2, "{err}");
}

proptest::proptest! {
    #[test]
    fn no_script_panics(script in r#"[a-z$(){}|;<>"' \n!0-9=:/-]{0,40}"#) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        // Random scripts practically never contain a loop. There is no timeout, since it would hide a parser that hangs.
        runtime.block_on(async { run(&script, "").await });
    }
}
