//! The addresses of the API server, which a mode may have to know before the first sync.

use std::{collections::BTreeSet, convert::Infallible, io, net::IpAddr, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use switchyard_core::{error::ErrorChain, runner::Input};
use switchyard_kernel::route::SharedAddresses;
use tokio::{
    sync::{mpsc::Sender, oneshot},
    time::{sleep, timeout},
};

/// The longest time that objects, and so the first sync, wait for the addresses.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest time between two attempts to resolve the name.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The time after which a name that was resolved is resolved again.
const AGAIN: Duration = Duration::from_secs(60);
/// The most addresses that are kept. A name may have others each time.
const MOST: usize = 256;

type Resolving = BoxFuture<'static, io::Result<BTreeSet<IpAddr>>>;

/// Runs `watching` once the addresses of a host are known, or after a while without, and goes on to
/// resolve the name: new addresses make the engine compare everything.
pub async fn before<T>(
    watching: impl Future<Output = T>,
    host: String,
    known: SharedAddresses,
    engine: Sender<Input>,
) -> T {
    let resolve = move || {
        let host = host.clone();
        let resolved = async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        };
        resolved.boxed()
    };
    before_with(watching, resolve, known, engine).await
}

async fn before_with<T>(
    watching: impl Future<Output = T>,
    resolve: impl Fn() -> Resolving,
    known: SharedAddresses,
    engine: Sender<Input>,
) -> T {
    let (first, is_known) = oneshot::channel();
    let watching = async {
        if timeout(PATIENCE, is_known).await.is_err() {
            tracing::warn!("The API server's addresses are not known yet; going on without");
        }
        watching.await
    };
    tokio::select! {
        result = watching => result,
        never = follow(resolve, known, engine, first) => match never {},
    }
}

async fn follow(
    resolve: impl Fn() -> Resolving,
    known: SharedAddresses,
    engine: Sender<Input>,
    first: oneshot::Sender<()>,
) -> Infallible {
    let mut first = Some(first);
    let mut failures = 0_u32;
    loop {
        let wait = match resolve().await {
            Ok(found) => {
                failures = 0;
                if add(&known, found) {
                    // An engine that has ended needs nothing.
                    let _ = engine.send(Input::Compare).await;
                }
                let _ = first.take().map(|first| first.send(()));
                AGAIN
            }
            Err(error) => {
                if failures == 0 {
                    let err = ErrorChain(&error);
                    tracing::warn!(%err, "Failed to resolve the API server's name; retrying");
                }
                failures += 1;
                LONGEST_PAUSE.min(Duration::from_secs(failures.into()))
            }
        };
        sleep(wait).await;
    }
}

/// Adds addresses to those that are known, as connections to earlier ones may last. Returns whether
/// any is new.
fn add(known: &SharedAddresses, found: BTreeSet<IpAddr>) -> bool {
    let mut known = known.lock();
    if found.is_subset(&known) {
        return false;
    }
    if known.union(&found).count() > MOST {
        known.clear();
    }
    known.extend(found.into_iter().take(MOST));
    true
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, sync::Mutex};

    use tokio::{sync::mpsc, time::Instant};

    use super::*;

    type Answers = Mutex<VecDeque<Option<[u8; 4]>>>;

    /// The next answer of a resolver, which is the last for ever.
    fn next(answers: &Answers) -> io::Result<BTreeSet<IpAddr>> {
        let mut answers = answers.lock().unwrap();
        let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().copied() };
        answer.flatten().map(|ip| [ip.into()].into()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    #[tokio::test(start_paused = true)]
    async fn objects_wait_for_the_first_answer_and_later_ones_count() {
        let (one, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let failures = vec![None; 7];
        let all = [failures.clone(), vec![Some(one), Some(one), Some(other)]].concat();
        for (answers, seconds) in [(all, 1 + 2 + 3 + 4 + 5 + 5 + 5), (failures, 30)] {
            let answers: Answers = Mutex::new(answers.into());
            let known = SharedAddresses::default();
            let (engine, mut inputs) = mpsc::channel(8);
            let begun = Instant::now();
            let watching = async {
                assert_eq!(begun.elapsed(), Duration::from_secs(seconds));
                let first = known.lock().clone();
                sleep(3 * AGAIN).await;
                first
            };
            let resolve = || std::future::ready(next(&answers)).boxed();
            let first = before_with(watching, resolve, known.clone(), engine).await;
            assert_eq!(first.contains(&one.into()), seconds < 30);
            let mut compared = 0;
            while inputs.try_recv().is_ok() {
                compared += 1;
            }
            let both: BTreeSet<IpAddr> = [one, other].map(IpAddr::from).into();
            let (expected, times) = if seconds < 30 { (both, 2) } else { Default::default() };
            assert_eq!((known.lock().clone(), compared), (expected, times));
        }
    }

    #[tokio::test]
    async fn a_host_may_be_a_name_or_an_address() {
        for (host, expected) in
            [("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "2001:db8::7"), ("localhost", "127.0.0.1")]
        {
            let (engine, _inputs) = mpsc::channel(8);
            let known = SharedAddresses::default();
            before(async {}, host.to_owned(), known.clone(), engine).await;
            assert!(known.lock().contains(&expected.parse().unwrap()), "{host}: {known:?}");
        }
    }
}
