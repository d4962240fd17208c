//! An example or more for each command; the tests in the parent module hand each to the parser.

/// Examples of one command.
pub struct Example {
    /// The words after `kvtier`; none for the command itself.
    pub command: &'static str,
    /// Lines for a shell.
    pub lines: &'static [&'static str],
}

/// All of them, in the order of the command's own list.
pub const EXAMPLES: &[Example] = &[
    Example {
        command: "",
        lines: &[
            "kvtier replay --requests 500",
            "kvtier doctor file /mnt/nvme",
            "kvtier -vv ls s3://kv-cache/prod",
        ],
    },
    Example {
        command: "replay",
        lines: &[
            "kvtier replay",
            "kvtier replay trace.jsonl --concurrency 16 --json",
            "kvtier replay trace.jsonl --config kv.yaml --metrics 127.0.0.1:9464",
            "kvtier gen-trace rag | kvtier replay - --chunk-bytes 64KiB",
        ],
    },
    Example {
        command: "sim",
        lines: &[
            "kvtier sim trace.jsonl",
            "kvtier sim trace.jsonl --policy default,lru,optimum --sizes 5%,4096",
            "kvtier sim trace.jsonl --plot hits.svg",
            "kvtier gen-trace agents | kvtier sim -",
        ],
    },
    Example {
        command: "gen-trace",
        lines: &[
            "kvtier gen-trace chat --requests 30000 --seed 7 > chat.jsonl",
            "kvtier gen-trace agents --out agents.bin.zst",
        ],
    },
    Example { command: "gen-key", lines: &["kvtier gen-key /etc/kvtier/key-1"] },
    Example { command: "bench", lines: &["kvtier bench file --path /mnt/nvme"] },
    Example {
        command: "bench file",
        lines: &["kvtier bench file --path /mnt/nvme --size 4MiB,32MiB --concurrency 1,8"],
    },
    Example {
        command: "bench gds",
        lines: &["kvtier bench gds --path /mnt/nvme --gpu 0 --size 32MiB"],
    },
    Example {
        command: "bench s3",
        lines: &["kvtier bench s3 --bucket kv-cache --op put,get,head --size 10MiB"],
    },
    Example { command: "doctor", lines: &["kvtier doctor file /mnt/nvme"] },
    Example {
        command: "doctor file",
        lines: &["kvtier doctor file /mnt/nvme", "kvtier doctor file /mnt/nvme --json"],
    },
    Example { command: "doctor gds", lines: &["kvtier doctor gds /mnt/nvme --gpu 1"] },
    Example {
        command: "doctor s3",
        lines: &[
            "kvtier doctor s3 --bucket kv-cache",
            "kvtier doctor s3 --endpoint http://10.0.0.1:9000 --bucket kv --concurrency 8",
            "kvtier doctor s3 --bucket kv-cache --progress",
        ],
    },
    Example {
        command: "doctor shm",
        lines: &["kvtier doctor shm", "kvtier doctor shm --older 3600 --yes"],
    },
    Example { command: "config", lines: &["kvtier config check lmcache.yaml"] },
    Example {
        command: "config check",
        lines: &["kvtier config check lmcache.yaml", "kvtier config check kv.toml --json"],
    },
    Example { command: "config explain", lines: &["kvtier config explain max_local_disk_size"] },
    Example {
        command: "plan",
        lines: &[
            "kvtier plan --model llama-3.1-8b --tp 4 --host 64GiB",
            "kvtier plan --encode --link 10Gbit/s --sample /mnt/nvme/kv",
            "kvtier plan --encode zstd:1,bf16-split+zstd:1 --link 3.2GB/s",
        ],
    },
    #[cfg(feature = "sim-fault")]
    Example {
        command: "sim-fault",
        lines: &["kvtier sim-fault --seed 7", "kvtier sim-fault --seed 7 --scope stack --json"],
    },
    Example {
        command: "ls",
        lines: &[
            "kvtier ls /mnt/nvme/kv",
            "kvtier ls /mnt/nvme/kv --long",
            "kvtier ls s3://kv-cache/prod --json",
        ],
    },
    Example {
        command: "stat",
        lines: &["kvtier stat /mnt/nvme/kv", "kvtier stat s3://kv-cache/prod --by model --json"],
    },
    Example {
        command: "verify",
        lines: &[
            "kvtier verify /mnt/nvme/kv --set-aside",
            "kvtier verify s3://kv/prod --include '0*' --concurrency 16 --bwlimit 200MB",
            "kvtier verify /mnt/nvme/kv --exclude 'f*' --progress",
            "kvtier verify s3://kv/prod --key-file 1=/etc/kvtier/key-1",
        ],
    },
    Example {
        command: "rm",
        lines: &[
            "kvtier rm s3://kv-cache/prod --all",
            "kvtier rm s3://kv-cache/prod --model org/model --older 7d --yes",
            "kvtier rm /mnt/nvme/kv --include '0*' --bwlimit 1GiB --yes --json",
        ],
    },
    Example {
        command: "migrate",
        lines: &[
            "kvtier migrate /mnt/nvme/kv s3://kv-cache/prod",
            "kvtier migrate /mnt/old /mnt/new --to-layout lmcache-mp --dry-run",
            "kvtier migrate /mnt/old s3://kv --concurrency 16 --bwlimit 100MB",
            "kvtier migrate /mnt/nvme/kv",
        ],
    },
    Example { command: "export", lines: &["kvtier export s3://kv-cache/prod kv.archive"] },
    Example { command: "import", lines: &["kvtier import kv.archive /mnt/nvme/kv --bytes 500GiB"] },
    Example {
        command: "key",
        lines: &[
            "kvtier key 'org/model@000000ff@0@0a0b'",
            "kvtier key m@1@0@12ab@bfloat16 --to s3",
            "kvtier key /mnt/nvme/kv/0a/*",
        ],
    },
    Example {
        command: "completions",
        lines: &["kvtier completions bash > /usr/share/bash-completion/completions/kvtier"],
    },
    Example { command: "man", lines: &["kvtier man", "kvtier man --dir /usr/share/man/man1"] },
];
