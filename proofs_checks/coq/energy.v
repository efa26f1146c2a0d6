(* One step of VLA in the energy norm |S|_M^2 = tr(S M S^T): what the Jacobian J = I - k a^T does to it. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.algebra_tactics Require Import ring.
From Linattest Require Import forms penalty.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(* a = A k / n, where A is the inverse of M; in VLA n = |A k| *)
Definition gain (R : realFieldType) d (M : 'M[R]_d) k n : 'cV[R]_d := n^-1 *: (invmx M *m k).
(* J: rows s go to s (I - k a^T) *)
Definition jacobian (R : realFieldType) d (k a : 'cV[R]_d) : 'M[R]_d := 1%:M - k *m a^T.

Section Energy.
Variables (R : realFieldType) (d : nat).
Implicit Types (M : 'M[R]_d) (k u v a : 'cV[R]_d) (n : R).

Lemma gain_back M k n : M \in unitmx -> M *m gain M k n = n^-1 *: k.
Proof. by move=> unitM; rewrite /gain -scalemxAr mulmxA mulmxV // mul1mx. Qed.

(* M - J M J^T = ((2 - c) / n) k k^T, c = a . k *)
Theorem energy_identity M k n : symmetric M -> M \in unitmx -> n != 0 ->
  let a := gain M k n in let J := jacobian k a in
  M - J *m M *m J^T = ((2%:R - dot a k) / n) *: (k *m k^T).
Proof.
move=> symM unitM n0 /=; set a := gain M k n; set c := dot a k.
have Ma : M *m a = n^-1 *: k by exact: gain_back.
have aM : a^T *m M = n^-1 *: k^T by rewrite -[LHS]trmxK trmx_mul symM trmxK Ma linearZ.
rewrite /jacobian linearB /= trmx1 trmx_mul trmxK mulmxBl mul1mx.
rewrite -(mulmxA k) aM mulmxBr !mulmx1 mulmxBl -scalemxAr mulmxA Ma.
have outer : k *m k^T *m (a *m k^T) = c *: (k *m k^T).
  by rewrite mulmxA -(mulmxA k) dotE dotC mul_mx_scalar -scalemxAl.
rewrite -(scalemxAl n^-1 k) -(scalemxAl n^-1 (k *m k^T)) outer scalerA.
have cancel (X Y : 'M[R]_d) : M - (M - X - Y) = X + Y by rewrite -addrA -opprD opprB addrCA subrr addr0.
rewrite cancel -scalerBl -scalerDl.
by congr (_ *: _); field.
Qed.

(* In the energy norm J does not expand, where 0 <= c <= 2 and n > 0. S has any number m of rows. *)
Lemma energy_outer m (S : 'M[R]_(m, d)) k : energy (k *m k^T) S = dot (S *m k) (S *m k).
Proof. by rewrite /energy /inner mulmxA -mulmxA -trmx_mul mxtrace_mulC dotE mxtrace_scalar mulr1n. Qed.

Lemma energy_scale m M (S : 'M[R]_(m, d)) c : energy (c *: M) S = c * energy M S.
Proof. by rewrite /energy /inner -scalemxAr -scalemxAl linearZ. Qed.

Lemma energy_jacobian m M J (S : 'M[R]_(m, d)) : energy M S - energy M (S *m J) = energy (M - J *m M *m J^T) S.
Proof. by rewrite /energy /inner mulmxBr mulmxBl raddfB /= trmx_mul !mulmxA. Qed.

Theorem energy_contraction m M k n (S : 'M[R]_(m, d)) : symmetric M -> pd M -> 0 < n ->
  let a := gain M k n in dot a k <= 2%:R -> energy M (S *m jacobian k a) <= energy M S.
Proof.
move=> symM posM n0 /= c2; rewrite -subr_ge0 energy_jacobian energy_identity ?pd_unit ?gt_eqF //.
rewrite energy_scale energy_outer.
by rewrite mulr_ge0 ?dot_ge0 // divr_ge0 ?subr_ge0 // ltW.
Qed.

(* From width 2 on some row keeps its energy, so that the norm of J is not less than 1. *)
Theorem energy_attained M k n : (1 < d)%N ->
  exists2 s : 'rV[R]_d, s != 0 & energy M (s *m jacobian k (gain M k n)) = energy M s.
Proof.
move=> wide; have : kermx k != 0.
  by rewrite -mxrank_eq0 mxrank_ker subn_eq0 -ltnNge; apply: leq_ltn_trans (rank_leq_col k) wide.
case/rowV0Pn => s /sub_kermxP sk nz; exists s => //.
by rewrite /jacobian mulmxBr mulmx1 mulmxA sk mul0mx subr0.
Qed.

(* In VLA, where n = |A k| and |k| = 1, c is a cosine: it lies in (0, 1]. *)
Theorem cosine_range M k n : symmetric M -> pd M -> dot k k = 1 -> 0 < n ->
  n ^+ 2 = dot (invmx M *m k) (invmx M *m k) -> 0 < dot (gain M k n) k <= 1.
Proof.
move=> symM posM k1 n0 size; have posA := pd_inv symM posM.
have knz : k != 0 by apply/eqP => k0; move/eqP: k1; rewrite k0 /dot mulmx0 mxE eq_sym oner_eq0.
have e : dot (gain M k n) k = n^-1 * form (invmx M) k k.
  by rewrite dotC /dot /gain -scalemxAr mulmxA mxE.
rewrite e pmulr_rgt0 ?invr_gt0 // posA //= ler_pdivr_mull // mulr1.
rewrite -(@ler_pexpn2r _ 2) ?nnegrE ?(ltW n0) ?(ltW (posA _ knz)) // size.
have -> : form (invmx M) k k = form 1%:M k (invmx M *m k) by rewrite form1 /dot mulmxA.
have := @cauchy_schwarz R d 1%:M k (invmx M *m k) (trmx1 _ _) (pd_psd (pd_scalar ltr01)).
by rewrite !form1 k1 mul1r.
Qed.

(* One more direction u in M costs a factor of 1 + u^T A u at most. *)
Lemma energy_of_new_direction m M u (S : 'M[R]_(m, d)) : symmetric M -> pd M ->
  energy (M + u *m u^T) S <= (1 + form (invmx M) u u) * energy M S.
Proof.
move=> symM posM; have unitM := pd_unit posM.
rewrite /energy !inner_rows mulr_sumr ler_sum // => i _; set s := (row i S)^T.
rewrite form_add mulrDl mul1r ler_add2l form_outer (dotC u) -expr2.
have -> : dot s u = form M s (invmx M *m u) by rewrite /form /dot mulmxA mulmxK.
by rewrite mulrC form_inv // cauchy_schwarz //; apply: pd_psd.
Qed.

(* The step of the Lyapunov function V = tr(S M S^T) with v = 0. *)
Theorem lyapunov_step m M u k n (S : 'M[R]_(m, d)) : symmetric M -> pd M -> 0 < n ->
  let N := M + u *m u^T in let a := gain N k n in dot a k <= 2%:R ->
  energy N (S *m jacobian k a) <= (1 + form (invmx M) u u) * energy M S.
Proof.
move=> symM posM n0 /= c2; apply: le_trans (energy_of_new_direction _ _ symM posM).
apply: energy_contraction => //; first by apply: symmetric_add => //; apply: symmetric_outer.
exact/pd_add/psd_outer.
Qed.
End Energy.
