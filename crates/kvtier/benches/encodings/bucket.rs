//! `bf16-split` in a bucket behind a link of 1 Gbit/s: loads come faster by the ratio of the bytes.

use kvtier::config::{Config, OpenTiers};
use kvtier_testkit::s3::{Server, Setup};

use super::chunks::Chunks;
use super::turns::{Speed, median, run, take_turns};

const LEN: usize = 4 << 20;
const LINK_BYTES_PER_S: u64 = 125_000_000;

pub fn measure(is_smoke: bool) {
    let turns = if is_smoke { 1 } else { 15 };
    let mut setup = Setup::default();
    setup.link_bytes_per_s = Some(LINK_BYTES_PER_S);
    let server = Server::start(setup).unwrap();
    let split = r#", "encode": [{"name": "bf16-split", "dtype": "bfloat16"}]"#;
    println!(
        "\nLoads of 4 MiB of bf16 from a bucket behind a link of 1 Gbit/s, with bf16-split:\n"
    );
    println!(
        "| at once | raw / stored | plain MB/s | encoded MB/s | faster | of the ratio | plain CPU s/GB | encoded CPU s/GB |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for inflight in [1, 8] {
        let chunks = Chunks::new(LEN, inflight);
        let plain = open(&server, &format!("plain-{inflight}"), "");
        let encoded = open(&server, &format!("encoded-{inflight}"), split);
        let tiers = [&plain, &encoded];
        // Enough that beginning and end of a turn, where fewer are under way, count little.
        let count = 4 * inflight as u64;
        for tiers in tiers {
            (0..count).for_each(|n| chunks.save(&*tiers.top, n));
        }
        let status = encoded.tiers[0].status();
        let [raw, stored] =
            ["encoded_raw_bytes", "encoded_stored_bytes"].map(|name| status.counter(name) as f64);
        let ratio = raw / stored;
        let turn = |place: usize, _| {
            let tier = &*tiers[place].top;
            run(count, inflight, LEN, |n| chunks.load(tier, n))
        };
        // The first turn warms up.
        take_turns(1, turn);
        let samples = take_turns(turns, turn);
        row(inflight, ratio, samples.map(|turns| median(&turns)));
        tiers.iter().for_each(|tiers| tiers.top.close().wait().unwrap());
    }
}

fn open(server: &Server, prefix: &str, settings: &str) -> OpenTiers {
    let Setup { bucket, access_key, secret_key, region, .. } = Setup::default();
    let text = format!(
        r#"{{"tiers": [{{"type": "s3", "s3_endpoint": "{}/{bucket}", "s3_region": "{region}", "prefix": "{prefix}",
            "max_capacity_gb": 4, "aws_access_key_id": "{access_key}", "aws_secret_access_key": "{secret_key}"{settings}}}]}}"#,
        server.url()
    );
    Config::from_json(&text, "bench.json").unwrap().open().unwrap()
}

fn row(inflight: usize, ratio: f64, [plain, encoded]: [Speed; 2]) {
    let faster = encoded.mb_per_s / plain.mb_per_s;
    println!(
        "| {inflight} | {ratio:.3} | {:.0} | {:.0} | {faster:.3} | {:.2} | {:.3} | {:.3} |",
        plain.mb_per_s,
        encoded.mb_per_s,
        faster / ratio,
        plain.cpu_s_per_gb,
        encoded.cpu_s_per_gb
    );
}
