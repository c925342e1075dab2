"""Whatever is used whenever: blocks live as long as rules say, tier by tier, and then are gone."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvstore.frame import Header
from kvstore.namespace import Namespace
from kvstore.retention import Lifetime, Retention, TenantRule
from kvstore.store import StoreConfig, TieredStore
from tests.kvstore.conftest import NAMESPACE, AmendingDict, Rig

NUM_BLOCKS = 14
FOREVER = float("inf")
DEFAULTS_S = {"device": 17.0, "host": 10.0, "disk": 25.0}
TENANTS = [NAMESPACE, NAMESPACE.with_salt("acme"), NAMESPACE.with_salt("zeno")]
RULES = st.builds(
    lambda acme, zeno, prefix, at: Retention(
        tenants={TENANTS[1].salt: TenantRule(acme), TENANTS[2].salt: TenantRule(zeno)},
        prefixes={} if prefix is None else {Rig().key(at): prefix},
    ),
    *[st.sampled_from([Lifetime(), Lifetime(8.0), Lifetime(None, 30.0), Lifetime(40.0, 60.0)])] * 2,
    st.sampled_from([None, Lifetime(30.0), Lifetime(None, 20.0), Lifetime(6.0, 35.0)]),
    st.integers(0, NUM_BLOCKS - 1),
)
TTLS = st.sampled_from([None, None, 3.0, 12.0, 50.0])


@dataclass
class Life:
    """What a model knows of one block; times in seconds."""

    created_s: float
    hard_s: float = FOREVER
    named_s: float = 0.0
    used_s: float | None = None
    copies: set[str] = field(default_factory=set)

    def end_s(self, tier: str) -> float:
        soft_s = self.named_s if self.used_s is None else max(self.named_s, self.used_s + DEFAULTS_S[tier])
        return round(min(self.hard_s, soft_s or FOREVER), 3)

    def use(self, now_s: float, ttl_s: float | None) -> None:
        if ttl_s is None:
            self.used_s = now_s
        else:
            self.named_s = max(self.named_s, now_s + ttl_s)


def parent_of(number: int) -> int | None:
    """Blocks are the nodes of three trees, one for each tenant's prompts."""
    return number - 3 if number >= 3 and number % 5 else (number - 6 if number >= 6 else None)


def chain(number: int) -> list[int]:
    """Return a prompt: a block and all before it, the first one first."""
    before = parent_of(number)
    return [*(chain(before) if before is not None else []), number]


class Lives(RuleBasedStateMachine):
    @initialize(retention=RULES)
    def begin(self, retention: Retention) -> None:
        self.rig = Rig(medium=AmendingDict())
        self.retention = retention
        self.lives: dict[int, Life] = {}
        self.learnt: dict[int, list[int]] = {}  # the prompt with a prefix in which a block was last named
        self.store = self.open()

    def open(self) -> TieredStore:
        ttls_s: dict[str, float | None] = {"host": DEFAULTS_S["host"], "disk": DEFAULTS_S["disk"]}
        config = StoreConfig(DEFAULTS_S["device"], ttls_s, retention=self.retention)
        store = self.rig.open(host_blocks=NUM_BLOCKS, disk_blocks=NUM_BLOCKS, config=config)
        store._sweeper.stop()  # it must not be half way through when a step looks
        for namespace in TENANTS:
            store.register_namespace(namespace)
        assert store.flush(5.0)
        return store

    @property
    def now_s(self) -> float:
        return self.rig.now_s

    def namespace(self, number: int) -> Namespace:
        return TENANTS[number % 3]

    def prefixes(self, prompt: list[int]) -> list[Lifetime]:
        """Return the rules of the prefixes that a prompt has, the longest one first."""
        rules = [self.retention.prefixes.get(self.rig.key(number)) for number in reversed(prompt)]
        return [rule for rule in rules if rule is not None]

    def lifetimes(self, prompt: list[int]) -> list[Lifetime]:
        return [*self.prefixes(prompt), self.retention.tenant(self.namespace(prompt[-1]).salt).lifetime]

    def ttl_s(self, prompt: list[int], asked_s: float | None) -> float | None:
        named = [asked_s, *(rule.ttl_s for rule in self.lifetimes(prompt))]
        return next((ttl_s for ttl_s in named if ttl_s is not None), None)

    def limit(self, number: int, prompt: list[int]) -> None:
        life = self.lives.get(number)
        hard = [rule.hard_ttl_s for rule in self.lifetimes(prompt) if rule.hard_ttl_s is not None]
        if life is not None and hard:
            life.hard_s = min(life.hard_s, life.created_s + min(hard))

    def bury(self) -> None:
        """Take the copies away whose time is over."""
        for number, life in list(self.lives.items()):
            life.copies = {tier for tier in life.copies if self.now_s < life.end_s(tier)}
            if not life.copies:
                del self.lives[number]

    def use_ancestors(self, number: int, ttl_s: float | None) -> None:
        before = parent_of(number)
        while before is not None and before in self.lives:
            self.lives[before].use(self.now_s, ttl_s)
            before = parent_of(before)

    def parent_key(self, number: int) -> bytes:
        parent = parent_of(number)
        return b"" if parent is None else self.rig.key(parent)

    @rule(number=st.integers(0, NUM_BLOCKS - 1), ttl_s=TTLS, is_whole=st.booleans())
    def put(self, number: int, ttl_s: float | None, is_whole: bool) -> None:
        """Store a prompt, its first block first; or the last one alone, where no rule is about prompts."""
        for each in chain(number) if is_whole or self.retention.prefixes else [number]:
            space, key, payload = self.namespace(each), self.rig.key(each), self.rig.payload(each)
            self.store.put(space, key, self.parent_key(each), payload, ttl_s=ttl_s)
            self.note_put(each, self.ttl_s(self.prompt_of(each), ttl_s))
        assert self.store.flush(5.0)

    def note_put(self, number: int, ttl_s: float | None) -> None:
        self.use_ancestors(number, ttl_s)
        life = self.lives.get(number)
        if life is None or life.copies == {"device"}:
            life = self.lives.setdefault(number, Life(self.now_s))
            life.copies |= {"host", "disk"}
        life.use(self.now_s, ttl_s)
        self.limit(number, self.prompt_of(number))

    def prompt_of(self, number: int) -> list[int]:
        return self.learnt.get(number, chain(number))

    @rule(number=st.integers(0, NUM_BLOCKS - 1), ttl_s=TTLS)
    def look_up(self, number: int, ttl_s: float | None) -> None:
        """Use a whole prompt."""
        prompt = chain(number)
        self.store.lookup([self.rig.key(each) for each in prompt], ttl_s=ttl_s).release()
        for each in prompt:
            self.limit(each, prompt)
            if self.prefixes(prompt):
                self.learnt[each] = prompt
        self.bury()
        for each in prompt:
            if each in self.lives:
                self.lives[each].use(self.now_s, self.ttl_s(prompt, ttl_s))

    @rule(number=st.integers(0, NUM_BLOCKS - 1), ttl_s=TTLS)
    def look_up_one(self, number: int, ttl_s: float | None) -> None:
        """Use a block and name none of those before it."""
        if self.retention.prefixes:
            return  # whose prompt it is would not be known
        self.store.lookup([self.rig.key(number)], ttl_s=ttl_s).release()
        if number in self.lives:
            ttl_s = self.ttl_s([number], ttl_s)
            self.lives[number].use(self.now_s, ttl_s)
            self.use_ancestors(number, ttl_s)

    @rule(number=st.integers(0, NUM_BLOCKS - 1))
    def load(self, number: int) -> None:
        """Read a block, which is no use of it, and brings it to memory."""
        life = self.lives.get(number)
        is_stored = life is not None and bool(life.copies - {"device"})
        assert self.rig.get(self.store, number) == is_stored
        if life is not None and is_stored and self.now_s < life.end_s("host"):
            life.copies.add("host")

    @rule(number=st.integers(0, NUM_BLOCKS - 1))
    def compute(self, number: int) -> None:
        """Have the engine's own pool take a prompt."""
        self.let_go_of_ended()
        for each in chain(number):
            life = self.lives.get(each)
            if life is None or "device" not in life.copies:
                assert not self.store.ended([self.rig.key(each)])
                self.store.device_added(self.rig.key(each), self.parent_key(each), self.namespace(each))
                self.lives.setdefault(each, Life(self.now_s)).copies.add("device")
                self.limit(each, self.prompt_of(each))
        self.bury()

    def let_go_of_ended(self) -> None:
        self.settle()
        for key in self.store.over_on_device():
            self.store.device_removed(key)

    @rule(number=st.integers(0, NUM_BLOCKS - 1))
    def evict_from_pool(self, number: int) -> None:
        life = self.lives.get(number)
        if life is not None and "device" in life.copies:
            self.store.device_removed(self.rig.key(number))
            life.copies.discard("device")
            self.bury()

    @rule(gap_s=st.sampled_from([0.001, 1.0, 2.5, 7.0, 9.999, 20.0]))
    def wait(self, gap_s: float) -> None:
        self.rig.now_s = round(self.rig.now_s + gap_s, 3)
        self.bury()

    @rule(retention=RULES)
    def change_rules(self, retention: Retention) -> None:
        """Let other rules hold for what is there as well."""
        self.retention = retention
        self.store.set_retention(retention)
        self.learnt = {}
        prefixes = [number for number in range(NUM_BLOCKS) if self.rig.key(number) in retention.prefixes]
        for number, life in self.lives.items():
            prompts = [chain(prefix) for prefix in prefixes if self.is_seen(number, prefix)]
            for prompt in [self.known_part(number), *prompts]:
                self.limit(number, prompt)
            if prompts:
                self.learnt[number] = prompts[0]
            ttl_s = self.ttl_s(self.known_part(number), None)
            if life.used_s is not None and ttl_s is not None:
                life.named_s, life.used_s = max(life.named_s, life.used_s + ttl_s), None
        self.bury()

    def known_part(self, number: int) -> list[int]:
        """Return what is known of the prompt up to a block: as far as its blocks are there, and one more."""
        known: list[int] = [number]
        over = {self.rig.number(key) for key in self.store.over_on_device()}  # still there, and known
        while known[0] in self.lives.keys() | over and (before := parent_of(known[0])) is not None:
            known.insert(0, before)
        return known

    def is_seen(self, number: int, prefix: int) -> bool:
        """Whether it is known that a block is before a prefix: all from there on is there."""
        after = chain(prefix)
        return number in after and all(each in self.lives for each in after[after.index(number) :])

    @rule()
    def restart(self) -> None:
        """Open the medium again: what it says may be behind, and never says too much."""
        self.settle()
        self.store.close(5.0)
        before, self.lives = self.lives, {}
        for key, (packed, _) in self.rig.medium.frames.items():
            number, header = self.rig.number(key), Header.unpack(packed)
            life, expiry = before[number], header.expiry
            soft_s, hard_s = (ms / 1000 if ms else FOREVER for ms in (expiry.soft_ms, expiry.hard_ms))
            assert min(soft_s, hard_s) <= life.end_s("disk") + 1e-6
            created_s = header.created_ms / 1000
            self.lives[number] = Life(created_s, hard_s, soft_s, copies={"disk"})
        self.store = self.open()
        self.change_rules(self.retention)

    def settle(self) -> None:
        while self.store._sweeper.sweep():
            pass
        assert self.store.flush(5.0)

    @invariant()
    def what_lives_is_there_and_nothing_else(self) -> None:
        order = ["device", "host", "disk"]
        expected = [
            next((tier for tier in order if number in self.lives and tier in self.lives[number].copies), None)
            for number in range(NUM_BLOCKS)
        ]
        keys = [self.rig.key(number) for number in range(NUM_BLOCKS)]
        assert list(self.store.peek(keys)) == expected
        self.store.check()

    @invariant()
    def what_is_over_leaves_the_media(self) -> None:
        self.settle()
        alive = {self.rig.key(number) for number, life in self.lives.items() if "disk" in life.copies}
        assert self.rig.medium.frames.keys() == alive

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close(5.0)
            assert self.store.num_holds == 0


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
