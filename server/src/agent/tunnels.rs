//! The tunnels of an agent: one to each replica of the control plane, each opened again when it has ended.

use std::time::{Duration, Instant};

use crowsnest_fleet::tunnel::Agent;
use http::HeaderMap;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::health::Tunnel;
use super::replicas::{Replica, Replicas};

#[cfg(test)]
mod tests;

/// A tunnel that was open for so long was no failure.
const STABLE: Duration = Duration::from_secs(30);

/// What the control plane answered.
pub(super) enum Answer<IO> {
    Opened(IO, Option<Replica>),
    /// There is a tunnel to that replica.
    Met,
}

/// Asks for tunnels with `ask`, which gets the headers to say, and serves them until told to stop.
pub(super) async fn keep<IO, F>(
    ask: impl Fn(HeaderMap) -> F,
    agent: &Agent,
    tell: &watch::Sender<Tunnel>,
    stop: &CancellationToken,
) where
    IO: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    F: Future<Output = anyhow::Result<Answer<IO>>>,
{
    let (mut replicas, mut tunnels) = (Replicas::default(), JoinSet::new());
    let mut pause = Duration::ZERO;
    while !stop.is_cancelled() {
        let mut met = HeaderMap::new();
        replicas.tell(&mut met);
        let asking = async {
            tokio::time::sleep(pause).await;
            ask(met).await
        };
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = tunnels.join_next() => {
                match ended {
                    Ok((number, lasted, why)) => {
                        replicas.ended(number, lasted >= STABLE);
                        tell_of(&replicas, why, tell);
                    }
                    // Nobody knows which it was.
                    Err(error) => {
                        tracing::error!(%error, "a tunnel's task died, opening all anew");
                        replicas.start_over();
                        tell_of(&replicas, "a tunnel's task died".to_owned(), tell);
                    }
                }
            }
            answer = asking, if replicas.looks() => match answer {
                Ok(Answer::Opened(io, replica)) => {
                    let name = replica.as_ref().map(tracing::field::display);
                    tracing::info!(replica = name, "a tunnel is open");
                    let stop = stop.child_token();
                    let number = replicas.opened(replica, stop.clone());
                    let agent = agent.clone();
                    tunnels.spawn(async move {
                        let began = Instant::now();
                        let ended = agent.serve(io, &stop).await;
                        let why = ended.map_or_else(|error| error.to_string(), |()| "the control plane ended it".to_owned());
                        (number, began.elapsed(), why)
                    });
                    tell.send_replace(Tunnel::Open);
                }
                Ok(Answer::Met) => replicas.met_again(),
                Err(error) => {
                    replicas.failed();
                    tell_of(&replicas, format!("{error:#}"), tell);
                }
            },
        }
        pause = replicas.pause(rand::random());
    }
    // Each has been told, and lets what it carries end.
    while tunnels.join_next().await.is_some() {}
}

/// Says why there is no tunnel, or that there is one less.
fn tell_of(replicas: &Replicas, why: String, tell: &watch::Sender<Tunnel>) {
    if replicas.is_empty() {
        tracing::warn!(error = %why, "no tunnel, trying again");
        tell.send_replace(Tunnel::Closed(why));
    } else {
        tracing::info!(%why, "no tunnel to one replica, trying again");
    }
}
