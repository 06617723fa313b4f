//! The tunnels of an agent: one to each replica of the control plane, each opened again when it has ended.

use std::pin::{Pin, pin};
use std::time::Duration;

use crowsnest_members::tunnel::Agent;
use futures::future::OptionFuture;
use http::HeaderMap;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::health::Tunnel;
use super::replicas::{Number, Replica, Replicas};

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
    let mut told = agent.replicas();
    let mut asking: Option<Pin<Box<F>>> = None;
    let mut next = pin!(tokio::time::sleep(Duration::ZERO));
    while !stop.is_cancelled() {
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
                next.as_mut().reset(Instant::now() + replicas.pause(rand::random()));
            }
            Ok(()) = told.changed() => {
                replicas.told(*told.borrow_and_update());
                // Told often, it must not be put off each time.
                let soon = Instant::now() + replicas.pause(rand::random());
                if soon < next.deadline() {
                    next.as_mut().reset(soon);
                }
            }
            () = &mut next, if asking.is_none() && replicas.looks() => {
                let mut met = HeaderMap::new();
                replicas.tell(&mut met);
                asking = Some(Box::pin(ask(met)));
            }
            Some(answer) = OptionFuture::from(asking.as_mut()) => {
                asking = None;
                match answer {
                    Ok(Answer::Opened(io, replica)) => {
                        let name = replica.as_ref().map(tracing::field::display);
                        tracing::info!(replica = name, "a tunnel is open");
                        let stop = stop.child_token();
                        let number = replicas.opened(replica, stop.clone());
                        tunnels.spawn(serve(agent.clone(), io, number, stop));
                        tell.send_replace(Tunnel::Open);
                    }
                    Ok(Answer::Met) => replicas.met_again(),
                    Err(error) => {
                        replicas.failed();
                        tell_of(&replicas, format!("{error:#}"), tell);
                    }
                }
                next.as_mut().reset(Instant::now() + replicas.pause(rand::random()));
            }
        }
    }
    // Each has been told, and lets what it carries end.
    while tunnels.join_next().await.is_some() {}
}

/// Which tunnel it was, how long it was open, and why it ended.
async fn serve<IO>(agent: Agent, io: IO, number: Number, stop: CancellationToken) -> (Number, Duration, String)
where
    IO: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let began = Instant::now();
    let ended = agent.serve(io, &stop).await;
    let why = ended.map_or_else(|error| error.to_string(), |()| "the control plane ended it".to_owned());
    (number, began.elapsed(), why)
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
