(* Log-linear attention's buckets, for positions of any size. As seen from token t, an earlier token s has level
   bit_length(t xor s); the token itself is level 0. Natural numbers; n / 2 ^ j is n >> j. *)
From Coq Require Import PeanoNat Lia.
Local Open Scope nat_scope.

Definition bit_length n := if n =? 0 then 0 else S (Nat.log2 n).
Definition level t s := bit_length (Nat.lxor t s).

(* The bucket of level S j: bit j of t is set and s lies in the aligned block of 2^j tokens before it ends. *)
Definition in_block t s j := Nat.testbit t j = true /\ s / 2 ^ j = t / 2 ^ j - 1.

Lemma shift n j : n / 2 ^ j = Nat.shiftr n j.
Proof. symmetry; apply Nat.shiftr_div_pow2. Qed.

Lemma pow_pos j : 2 ^ j <> 0.
Proof. apply Nat.pow_nonzero; lia. Qed.

Lemma bit_length_le n j : bit_length n <= j <-> n / 2 ^ j = 0.
Proof.
  unfold bit_length; destruct (Nat.eqb_spec n 0) as [-> | nz].
  - rewrite Nat.div_0_l by apply pow_pos; lia.
  - rewrite Nat.div_small_iff by apply pow_pos.
    rewrite Nat.log2_lt_pow2 by lia. unfold lt at 1. split; intros; lia.
Qed.

(* A level is at most j exactly if t and s agree above their j lowest bits. *)
Lemma level_le t s j : level t s <= j <-> t / 2 ^ j = s / 2 ^ j.
Proof.
  unfold level; rewrite bit_length_le, !shift, Nat.shiftr_lxor; split; intro h.
  - now apply Nat.lxor_eq.
  - rewrite h; apply Nat.lxor_nilpotent.
Qed.

Lemma level_gt t s j : j < level t s <-> t / 2 ^ j <> s / 2 ^ j.
Proof. rewrite <- level_le; lia. Qed.

Lemma half n j : n / 2 ^ S j = (n / 2 ^ j) / 2.
Proof. rewrite Nat.pow_succ_r', Nat.mul_comm, Nat.div_div by (try apply pow_pos; lia); reflexivity. Qed.

Lemma bit_odd n j : Nat.testbit n j = true <-> (n / 2 ^ j) mod 2 = 1.
Proof. apply Nat.testbit_true. Qed.

Lemma ordered t s j : s <= t -> s / 2 ^ j <= t / 2 ^ j.
Proof. intros; apply Nat.div_le_mono; [apply pow_pos | assumption]. Qed.

Lemma halves a b : b <= a -> (a / 2 = b / 2 /\ a <> b) <-> (a mod 2 = 1 /\ b = a - 1).
Proof.
  intro; pose proof (Nat.div_mod a 2); pose proof (Nat.div_mod b 2).
  pose proof (Nat.mod_upper_bound a 2); pose proof (Nat.mod_upper_bound b 2); lia.
Qed.

(* Levels are blocks: bit_length(t xor s) = j + 1 exactly if s lies in the block of bit j. *)
Theorem level_is_block t s j : s < t -> level t s = S j <-> in_block t s j.
Proof.
  intro past; unfold in_block; rewrite bit_odd, <- halves by (apply ordered; lia).
  rewrite <- !half, <- level_le, <- level_gt; lia.
Qed.

(* Partition: every earlier token lies in exactly one block, and that block is of a set bit of t. *)
Theorem blocks_partition t s : s < t -> exists! j, in_block t s j.
Proof.
  intro past; assert (positive : 0 < level t s).
  { apply level_gt; rewrite !Nat.div_1_r; lia. }
  exists (level t s - 1); split.
  - apply level_is_block; lia.
  - intros j h; apply level_is_block in h; lia.
Qed.

(* Extent: the block of a set bit j is the 2^j tokens from (t >> j - 1) 2^j on, all of them earlier than t. *)
Theorem block_extent t s j : Nat.testbit t j = true ->
  (in_block t s j <-> (t / 2 ^ j - 1) * 2 ^ j <= s < (t / 2 ^ j - 1) * 2 ^ j + 2 ^ j)
  /\ (t / 2 ^ j - 1) * 2 ^ j + 2 ^ j <= t.
Proof.
  intro bit; pose proof (pow_pos j) as p; pose proof (proj1 (bit_odd t j) bit) as odd.
  assert (1 <= t / 2 ^ j) by (destruct (t / 2 ^ j); [discriminate odd | lia]).
  assert (2 ^ j * (t / 2 ^ j) <= t) by (apply Nat.mul_div_le; exact p).
  split; [|nia].
  unfold in_block; set (b := t / 2 ^ j - 1); split.
  - intros [_ e]. pose proof (Nat.div_mod s (2 ^ j) p). pose proof (Nat.mod_upper_bound s (2 ^ j) p).
    rewrite e in *; nia.
  - intros [low high]; split; [exact bit|]. symmetry; apply Nat.div_unique with (s - b * 2 ^ j); nia.
Qed.

(* Carry: from t to t + 1 = odd 2^z, the levels up to z merge into level z + 1 and the others stay. *)
Theorem carry t s z : s <= t -> Nat.testbit (S t) z = true -> S t mod 2 ^ z = 0 ->
  (level t s <= z -> level (S t) s = S z) /\ (z < level t s -> level (S t) s = level t s).
Proof.
  intros past bit zeros; pose proof (pow_pos z) as p.
  assert (low : S t / 2 ^ z = S (t / 2 ^ z)).
  { pose proof (Nat.div_mod (S t) (2 ^ z) p) as e; rewrite zeros in e.
    destruct (S t / 2 ^ z) as [|q]; [lia|]; f_equal.
    apply Nat.div_unique with (2 ^ z - 1); nia. }
  apply bit_odd in bit; rewrite low in bit.
  assert (same : forall j, z < j -> S t / 2 ^ j = t / 2 ^ j).
  { intros j; induction 1 as [|j _ IH]; rewrite !half.
    - rewrite low. pose proof (Nat.div_mod (S (t / 2 ^ z)) 2). pose proof (Nat.div_mod (t / 2 ^ z) 2).
      pose proof (Nat.mod_upper_bound (t / 2 ^ z) 2). lia.
    - now rewrite IH. }
  split; intro h.
  - apply level_le in h. apply level_is_block; [lia|]. unfold in_block.
    rewrite bit_odd, low; split; [exact bit | lia].
  - assert (agree : forall j, z < j -> (level (S t) s <= j <-> level t s <= j)).
    { intros j above; rewrite !level_le, same by exact above; reflexivity. }
    assert (deep : z < level (S t) s).
    { destruct (Nat.le_gt_cases (level (S t) s) z) as [small | ?]; [|assumption].
      apply level_le in small; rewrite low in small. pose proof (ordered t s z past); lia. }
    pose proof (agree (level t s) h). 
    destruct (Nat.eq_dec (level (S t) s) z); [lia|].
    pose proof (agree (level (S t) s)); lia.
Qed.

(* Tree: for a set bit j of chunk n < N, node n >> j - 1 is one of the N >> j whole nodes of height j, and ends at or
   before chunk n. *)
Theorem tree_node n N j : n < N -> Nat.testbit n j = true ->
  n / 2 ^ j - 1 < N / 2 ^ j /\ (n / 2 ^ j - 1 + 1) * 2 ^ j <= n.
Proof.
  intros inside bit; pose proof (proj1 (bit_odd n j) bit) as odd; pose proof (pow_pos j) as p.
  assert (1 <= n / 2 ^ j) by (destruct (n / 2 ^ j); [discriminate odd | lia]).
  pose proof (ordered N n j); pose proof (Nat.mul_div_le n (2 ^ j) p); split; nia.
Qed.

(* Levels: among T tokens no level exceeds bit_length(T - 1). *)
Theorem most_levels t s T : s <= t -> t < T -> level t s <= bit_length (T - 1).
Proof.
  intros past inside; apply level_le.
  assert (t / 2 ^ bit_length (T - 1) = 0) as e.
  { apply bit_length_le. pose proof (proj1 (bit_length_le (T - 1) _) (Nat.le_refl _)) as z.
    apply bit_length_le. pose proof (ordered (T - 1) t (bit_length (T - 1))). lia. }
  pose proof (ordered t s (bit_length (T - 1)) past). lia.
Qed.

(* Twins: each law with a bound, a block or a level moved by one. *)
Theorem twin_level_is_block : ~ (forall t s j, s < t -> level t s = S (S j) <-> in_block t s j).
Proof. intro h; specialize (h 1 0 0); cbv in h; destruct h as [_ h]; [lia|]; discriminate h; split; reflexivity. Qed.

Theorem twin_blocks_partition : ~ (forall t s, s <= t -> exists! j, in_block t s j).
Proof. intro h; destruct (h 0 0) as [j [[bit _] _]]; [lia|]; rewrite Nat.bits_0 in bit; discriminate bit. Qed.

Theorem twin_block_extent : ~ (forall t s j, Nat.testbit t j = true ->
  (in_block t s j <-> (t / 2 ^ j - 1) * 2 ^ j <= s < (t / 2 ^ j - 1) * 2 ^ j + 2 ^ S j)).
Proof. intro h; destruct (h 1 1 0) as [_ [_ e]]; cbn in *; [reflexivity | lia | discriminate e]. Qed.

Theorem twin_carry : ~ (forall t s z, s <= t -> Nat.testbit (S t) z = true -> S t mod 2 ^ z = 0 ->
  level t s <= z -> level (S t) s = z).
Proof. intro h; specialize (h 0 0 0); cbv in h; discriminate h; lia || reflexivity. Qed.

Theorem twin_tree_node : ~ (forall n N j, n < N -> Nat.testbit n j = true -> n / 2 ^ j < N / 2 ^ j).
Proof. intro h; specialize (h 2 3 1); cbv in h; assert (2 <= 1) by (apply h; lia || reflexivity); lia. Qed.

Theorem twin_most_levels : ~ (forall t s T, s <= t -> t < T -> level t s < bit_length (T - 1)).
Proof. intro h; specialize (h 1 0 2); cbv in h; assert (2 <= 1) by (apply h; lia); lia. Qed.
