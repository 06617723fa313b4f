//! Commands that show information about the container, and process commands.

use std::time::Duration;

use super::super::{Flow, Shell, Stdio};
use super::{Code, is_program, print};

/// `env` and `printenv`.
pub async fn env(shell: &mut Shell, name: &str, args: &[String], io: &Stdio) -> Code {
    if name == "printenv" && !args.is_empty() {
        let mut code = 0;
        for name in args {
            match shell.env.get(name) {
                Some(value) => print(&io.stdout, format!("{value}\n")).await?,
                None => code = 1,
            }
        }
        return Ok(code);
    }
    let mut inner = shell.clone();
    let mut rest = args;
    while let Some((argument, more)) = rest.split_first() {
        match (argument.as_str(), argument.split_once('=')) {
            ("-i", _) => inner.env.clear(),
            (_, Some((name, value))) => drop(inner.env.insert(name.to_owned(), value.to_owned())),
            _ => break,
        }
        rest = more;
    }
    if rest.is_empty() {
        let lines: String = inner.env.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        print(&io.stdout, lines).await?;
        return Ok(0);
    }
    Ok(match inner.run_program(rest, io).await {
        Ok(code) | Err(Flow::Exit(code)) => code,
        Err(Flow::Break | Flow::Continue) => 0,
    })
}

pub async fn date(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let format = args.iter().find_map(|a| a.strip_prefix('+')).unwrap_or("%a %b %e %H:%M:%S UTC %Y");
    let now = shell.clock.now().to_zoned(jiff::tz::TimeZone::UTC);
    match jiff::fmt::strtime::format(format, &now) {
        Ok(text) => {
            print(&io.stdout, format!("{text}\n")).await?;
            Ok(0)
        }
        Err(_) => {
            io.error(&format!("date: invalid format '+{format}'")).await;
            Ok(1)
        }
    }
}

pub async fn sleep(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let mut total = 0.0;
    for arg in args {
        let (number, unit) = match arg.char_indices().last() {
            Some((at, unit @ ('s' | 'm' | 'h' | 'd'))) => (&arg[..at], unit),
            _ => (arg.as_str(), 's'),
        };
        let factor = [('s', 1.0), ('m', 60.0), ('h', 3600.0), ('d', 86400.0)]
            .iter()
            .find(|(u, _)| *u == unit)
            .map_or(1.0, |(_, f)| *f);
        match number.parse::<f64>() {
            Ok(seconds) if seconds >= 0.0 => total += seconds * factor,
            // `infinity` is ten years.
            Err(_) if number == "infinity" => total += 3.2e8,
            Err(_) if number == "inf" => total += 3.2e8,
            _ => {
                io.error(&format!("sleep: invalid number '{arg}'")).await;
                return Ok(1);
            }
        }
    }
    if args.is_empty() {
        io.error("sleep: missing operand").await;
        return Ok(1);
    }
    shell.clock.sleep(Duration::from_secs_f64(f64::min(total, 3.2e8))).await;
    Ok(0)
}

/// `logs-generator` of Kubernetes' test image: writes a number of lines, evenly distributed over a duration.
pub async fn agnhost(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg.trim_start_matches('-').split('=').next() == Some(name))?;
        args[at].split_once('=').map(|(_, value)| value.to_owned()).or_else(|| args.get(at + 1).cloned())
    };
    let lines: Option<u32> = value("log-lines-total").and_then(|lines| lines.parse().ok());
    let seconds: Option<f64> =
        value("run-duration").and_then(|time| time.strip_suffix('s').and_then(|seconds| seconds.parse().ok()));
    let (Some("logs-generator"), Some(lines), Some(seconds)) = (args.first().map(String::as_str), lines, seconds)
    else {
        shell.record_unknown_command();
        return Ok(127);
    };
    const VERBS: [&str; 3] = ["GET", "PUT", "POST"];
    const NAMESPACES: [&str; 3] = ["kube-system", "default", "ns"];
    let pause = Duration::from_secs_f64((seconds / f64::from(lines.max(1))).clamp(0.0, 3.2e8));
    for number in 0..lines {
        let random = usize::try_from(shell.random()).unwrap_or_default();
        let (verb, namespace) = (VERBS[random % 3], NAMESPACES[number as usize % 3]);
        let at = shell.clock.now().strftime("%m%d %H:%M:%S%.6f").to_string();
        let line = format!(
            "I{at}       1 logs_generator.go:76] {number} {verb} /api/v1/namespaces/{namespace}/pods/{random:04x} {}\n",
            200 + random % 400
        );
        print(&io.stdout, line).await?;
        shell.clock.sleep(pause).await;
    }
    Ok(0)
}

pub async fn ps(shell: &Shell, io: &Stdio) -> Code {
    let command =
        if shell.identity.command.is_empty() { "/entrypoint".to_owned() } else { shell.identity.command.join(" ") };
    print(&io.stdout, format!("PID   USER     TIME  COMMAND\n    1 root      0:00 {command}\n    7 root      0:00 {}\n    8 root      0:00 ps\n", shell.name)).await?;
    Ok(0)
}

pub async fn which(args: &[String], io: &Stdio) -> Code {
    let mut code = 0;
    for name in args {
        if is_program(name) {
            print(&io.stdout, format!("/bin/{}\n", name.rsplit('/').next().unwrap_or(name))).await?;
        } else {
            code = 1;
        }
    }
    Ok(code)
}

/// `kill`. The only process is 1, and signals to it have no effect.
pub async fn kill(args: &[String], io: &Stdio) -> Code {
    if args.iter().any(|a| a == "1") {
        return Ok(0);
    }
    io.error(&format!("kill: can't kill pid {}: No such process", args.last().map_or("", String::as_str))).await;
    Ok(1)
}

/// `tty` and `stty`.
pub async fn terminal(shell: &Shell, name: &str, args: &[String], io: &Stdio) -> Code {
    let Some(terminal) = &shell.terminal else {
        if name == "tty" {
            print(&io.stdout, "not a tty\n").await?;
        } else {
            io.error("stty: standard input: Not a tty").await;
        }
        return Ok(1);
    };
    match (name, args.first().map(String::as_str), terminal.get()) {
        ("tty", ..) => print(&io.stdout, "/dev/pts/0\n").await?,
        (_, Some("size"), Some(size)) => print(&io.stdout, format!("{} {}\n", size.height, size.width)).await?,
        (_, Some("size"), None) => print(&io.stdout, "0 0\n").await?,
        _ => {}
    }
    Ok(0)
}

/// `hostname`, `id`, `whoami`, `uname`, `uptime`.
pub async fn identity(shell: &Shell, name: &str, args: &[String], io: &Stdio) -> Code {
    let identity = &shell.identity;
    let option = args.first().map_or("", String::as_str);
    let text = match (name, option) {
        ("hostname", "-i" | "-I") => identity.ip.clone(),
        ("hostname", _) => identity.hostname.clone(),
        ("id", "-u" | "-g") => "0".to_owned(),
        ("id", "-un" | "-gn") | ("whoami", _) => "root".to_owned(),
        ("id", _) => "uid=0(root) gid=0(root) groups=0(root)".to_owned(),
        ("uname", "-a") => format!("Linux {} 6.12.0-sim #1 SMP x86_64 Linux", identity.hostname),
        ("uname", "-n") => identity.hostname.clone(),
        ("uname", "-r") => "6.12.0-sim".to_owned(),
        ("uname", "-m") => "x86_64".to_owned(),
        ("uname", _) => "Linux".to_owned(),
        _ => {
            let now = shell.clock.now();
            let minutes = (now.as_second() - identity.started.as_second()).max(0) / 60;
            format!(
                " {} up {}:{:02},  load average: 0.00, 0.00, 0.00",
                now.strftime("%H:%M:%S"),
                minutes / 60,
                minutes % 60
            )
        }
    };
    print(&io.stdout, format!("{text}\n")).await?;
    Ok(0)
}
